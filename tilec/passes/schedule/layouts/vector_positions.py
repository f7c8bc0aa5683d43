"""Marks accesses at positions that a thread may make as vectors: rows of a table, gathered, scattered or added to; and boxes of
sums in memory, which targets with `red` of vectors add as such (PTX ISA, `red`, vector types).

In: a proven function whose tiles have layouts. Out: the same with `vector` and `whole` on `gather`, `scatter`, `atomic` and
`atomic_scatter`, as far as alignment is proven. A box has the alignment of a store. Positions have it where the indices of the
last axis count up by 1 along the tile's last axis and the others stay, as in the rows of an embedding.

Without a vector, each instruction of a warp accesses elements that lie apart, as many bytes as a thread has side by side; and a
sum of 16-bit floats is a loop of compare-and-swap, because the chip adds them in pairs alone.
"""

from __future__ import annotations

from math import gcd

from tilec.ir.core import Function
from tilec.ir.expr import const
from tilec.ir.ops import AtomicScatter, AtomicUpdate, Gather, Scatter
from tilec.ir.ops.memory import adds_vectors
from tilec.passes.analysis.divisibility import divisor, expr_divisor
from tilec.passes.analysis.runs import run_of
from tilec.passes.schedule.layouts.alignments import Alignments
from tilec.target.schedule import VECTOR
from tilec.target.targets import Target


def mark(function: Function, target: Target) -> Function:
    """Set vectors, in place."""
    ops = [op for op in function.body.walk() if isinstance(op, Gather | Scatter)]
    sums = [op for op in function.body.walk() if isinstance(op, AtomicUpdate | AtomicScatter) and adds_vectors(op)]
    marked = [op for op in (*ops, *(sums if target.adds_vectors else ())) if op.tensor.tensor.dtype.kind != "b"]
    if not marked:
        return function
    alignments = Alignments(function)
    for op in marked:
        tensor = op.tensor.tensor
        known = alignments.of(op, tensor.align) if isinstance(op, AtomicUpdate) else _aligned(op, alignments)
        vector = gcd(known, VECTOR)
        if vector > tensor.dtype.bytes:
            op.vector, op.whole = vector, alignments.divisor_of_rows(tensor) % vector == 0
    return function


def _aligned(op: Gather | Scatter | AtomicScatter, alignments: Alignments) -> int:
    """A divisor of the addresses, in bytes, of the first elements of rows of the tile, if these are consecutive in memory; else
    the size of an element."""
    tensor = op.tensor.tensor
    size, last = tensor.dtype.bytes, tensor.rank - 1
    runs = [run_of(index, alignments.facts) for index in op.indices]
    along = runs[-1]
    consecutive = along is not None and along.step == 1 and all(run is not None and run.step == 0 for run in runs[:-1])
    if not consecutive or along is None or (tensor.strides is not None and tensor.strides[-1] != const(1)):
        return size
    aligned = gcd(tensor.align, along.divides * size)
    running = expr_divisor(tensor.dims[last], alignments.symbols) or 1
    for axis in range(last - 1, -1, -1):
        stride = running if tensor.strides is None else expr_divisor(tensor.strides[axis], alignments.symbols)
        aligned = gcd(aligned, stride * size * divisor(alignments.facts[op.indices[axis]]))
        running *= expr_divisor(tensor.dims[axis], alignments.symbols) or 1
    return aligned
