"""Marks divisions and shifts that the chip's plain instruction gives the right value: where the divisor is shown to be
positive, or the amount at least 0 and below the width.

Two things show it. Ranges hold for every launch that satisfies the contract and use nothing that a kernel declares
(`tilec.passes.ranges`), so they hold in `unsafe` blocks too. Where they do not suffice, the proof ladder is asked about the
scalar divisors at the top of a kernel, which every block computes: their proof needs no condition that a later move of the
operation could leave behind. What is not marked gets a guard in lowering; the value is the same.
"""

from __future__ import annotations

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import Binary, BinaryInRange
from tilec.passes import terms
from tilec.passes.index_terms import IndexTerms
from tilec.passes.ladder import Discharge, Ladder
from tilec.passes.ranges import Range, value_ranges

DIVISIONS = ("floordiv", "mod")


def positive_divisors(function: Function) -> frozenset[Value]:
    """Scalar divisors at the top of a kernel, as the front end made it, that are positive in every block of every launch."""
    facts = value_ranges(function)
    asked = [op for op in function.body.ops if _is_division(op) and not op.result.tile.rank and not _in_range(op, facts)]
    if not asked:
        return frozenset()
    index = IndexTerms(function)
    ladder = Ladder(index)
    found: set[Value] = set()
    for op in asked:
        divisor = op.operands[1]
        # `divided`: the divisions before this one have divisors that are proven, and are executed whenever this one is.
        if isinstance(ladder.discharge([*index.divided(op), terms.lt(index.scalar(divisor), 1)]), Discharge):
            found.add(divisor)
    return frozenset(found)


def mark(function: Function, positive: frozenset[Value] = frozenset()) -> Function:
    """Replace operations, in place; their results stay the values they were. `positive` is from `positive_divisors`."""
    facts = value_ranges(function)
    _mark(function.body, facts, positive)
    return function


def _is_division(op: Op) -> bool:
    return isinstance(op, Binary) and op.kind in DIVISIONS and op.result.tile.dtype.is_integer


def _mark(block: Block, facts: dict[Value, Range], positive: frozenset[Value]) -> None:
    for position, op in enumerate(block.ops):
        for region in op.regions:
            _mark(region, facts, positive)
        if type(op) is not Binary or not op.result.tile.dtype.is_integer:
            continue
        if _in_range(op, facts) or (op.kind in DIVISIONS and op.operands[1] in positive):
            marked = BinaryInRange(kind=op.kind, operands=op.operands, results=op.results, loc=op.loc)
            marked.result.owner = marked
            block.ops[position] = marked


def _in_range(op: Op, facts: dict[Value, Range]) -> bool:
    assert isinstance(op, Binary)
    right = facts[op.operands[1]]
    if op.kind in DIVISIONS:
        return right.low >= 1
    return op.kind in ("shl", "shr") and right.low >= 0 and right.high < op.result.tile.dtype.bits
