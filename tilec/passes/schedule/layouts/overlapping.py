"""Boxes of one tensor that overlap, such as the taps of a stencil, read the vectors that they share.

In: a proven function with `vector` and `whole` on every access. Out: the same, with an `OverlappingLoad` in place of each load
of a tensor that is only read, if some of its boxes in a block of operations begin a known number of elements after whole
vectors, and the rows of all are whole vectors. Each such box reads the vectors that its elements lie in. The boxes of one row
have most of them in common: lowering writes their addresses such that one load of each is left.
"""

from __future__ import annotations

from math import gcd

from tilec.ir.core import Access, Block, Function, Op, Value
from tilec.ir.ops import Load
from tilec.ir.ops.overlapping_ops import OverlappingLoad
from tilec.passes.schedule.layouts.alignments import Alignments
from tilec.target.schedule import VECTOR

Vectors = dict[Op, tuple[int, int]]
"""Bytes of a vector, and elements from a multiple of them to the first column, by load."""


def mark(function: Function, alignments: Alignments) -> None:
    """Replace loads, in place: those of boxes of one tensor in one block of operations."""
    _mark(function, function.body, alignments)


def _mark(function: Function, block: Block, alignments: Alignments) -> None:
    loads: dict[Value, list[Load]] = {}
    for op in block.ops:
        for region in op.regions:
            _mark(function, region, alignments)
        if type(op) is Load and op.result.tile.rank and function.parameter_of(op.source).access is Access.IN:
            loads.setdefault(op.source, []).append(op)
    found: Vectors = {}
    for boxes in loads.values():
        found |= _vectors(boxes, alignments) if len(boxes) > 1 else {}
    if found:
        block.ops = [_overlapping(op, *found[op]) if isinstance(op, Load) and op in found else op for op in block.ops]


def _vectors(boxes: list[Load], alignments: Alignments) -> Vectors:
    """The vectors of a tensor's boxes; none unless one of them begins between two, and all lie in rows of whole vectors."""
    found: Vectors = {}
    for op in boxes:
        tensor, fact = op.source.tensor, alignments.facts[op.offsets[-1]]
        size = tensor.dtype.bytes
        vector = gcd(alignments.of(op, tensor.align, column=fact.modulus), VECTOR)
        if op.unsafe is not None or vector <= size or alignments.divisor_of_rows(tensor) % vector:
            return {}
        found[op] = vector, fact.rest % (vector // size)
    return found if any(lead for _, lead in found.values()) else {}


def _overlapping(op: Load, vector: int, lead: int) -> OverlappingLoad:
    new = OverlappingLoad(
        operands=op.operands, loc=op.loc, pad=op.pad, unsafe=op.unsafe, vector=vector, whole=True, lead=lead
    )  # fmt: skip
    new.results = op.results
    for result in new.results:
        result.owner = new
    return new
