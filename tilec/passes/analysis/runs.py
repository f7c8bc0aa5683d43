"""How the elements of an index tile follow each other along its last axis: rows of a table, gathered or updated row by row.

In: an integer tile of a proven kernel, and the ranges of its values (`tilec.passes.analysis.divisibility`). Out: `Run`, or
None if nothing is known. Everything holds modulo 2^bits of the tile's dtype, so it also does where an index wraps: w numbers
that count up from a multiple of w, a power of two, never pass the end of a dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import NamedTuple

from tilec.ir.core import Op, Value
from tilec.ir.ops import Binary, Broadcast, Cast, Constant, Iota, Reshape
from tilec.ir.ops.staging_ops import Relayout
from tilec.passes.analysis.divisibility import divisor
from tilec.passes.analysis.ranges import Range


class Run(NamedTuple):
    """Element j along the last axis is the first one plus `step * j`; `divides` divides the first ones, as far as it is a power
    of two, and is 0 if they are 0."""

    step: int
    divides: int


def run_of(value: Value, facts: Mapping[Value, Range]) -> Run | None:
    """The run of a tile; of a scalar, the same number again and again."""
    tile = value.tile
    op = value.owner if isinstance(value.owner, Op) else None
    same = Run(0, divisor(facts[value]))
    if not tile.rank or tile.shape[-1] == 1 or isinstance(op, Constant):
        return same
    match op:
        case Iota():
            return Run(1, 0)
        case Broadcast():
            source = op.operands[0]
            repeats = not source.tile.rank or source.tile.shape[-1] < tile.shape[-1]
            return Run(0, divisor(facts[source])) if repeats else run_of(source, facts)
        case Reshape():
            return run_of(op.operands[0], facts) if op.operands[0].tile.shape[-1:] == tile.shape[-1:] else None
        case Relayout():
            return run_of(op.operands[0], facts)
        case Cast() if op.operands[0].tile.dtype.is_integer:
            return run_of(op.operands[0], facts)
        case Binary(kind="add" | "sub" | "mul"):
            parts = [run_of(operand, facts) for operand in op.operands]
            return _combined(op, parts[0], parts[1]) if parts[0] and parts[1] else None
        case _:
            pass
    if op is not None and op.elementwise:
        constant = all((part := run_of(operand, facts)) is not None and part.step == 0 for operand in op.operands)
        return same if constant else None
    return None


def _combined(op: Binary, left: Run, right: Run) -> Run | None:
    if op.kind != "mul":
        step = left.step + right.step if op.kind == "add" else left.step - right.step
        return Run(step, gcd(left.divides, right.divides))
    if left.step == right.step == 0:
        return Run(0, left.divides * right.divides)
    for run, factor in ((left, op.operands[1]), (right, op.operands[0])):
        number = _constant(factor)
        if number is not None:
            return Run(run.step * number, run.divides * number)
    return None


def _constant(value: Value) -> int | None:
    while isinstance(value.owner, Broadcast | Relayout | Reshape):
        value = value.owner.operands[0]
    return int(value.owner.value) if isinstance(value.owner, Constant) else None
