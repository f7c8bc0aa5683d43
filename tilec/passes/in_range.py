"""Marks divisions and shifts that the chip's plain instruction gives the right value: where ranges show that the divisor is
positive, or the amount at least 0 and below the width.

Ranges hold for every launch that satisfies the contract and use nothing that a kernel declares (`tilec.passes.ranges`), so the
mark holds in `unsafe` blocks too. What is not marked gets a guard in lowering; the value is the same.
"""

from __future__ import annotations

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import Binary, BinaryInRange
from tilec.passes.ranges import Range, value_ranges


def mark(function: Function) -> Function:
    """Replace operations, in place; their results stay the values they were."""
    facts = value_ranges(function)
    _mark(function.body, facts)
    return function


def _mark(block: Block, facts: dict[Value, Range]) -> None:
    for position, op in enumerate(block.ops):
        for region in op.regions:
            _mark(region, facts)
        if type(op) is Binary and op.result.tile.dtype.is_integer and _in_range(op, facts):
            marked = BinaryInRange(kind=op.kind, operands=op.operands, results=op.results, loc=op.loc)
            marked.result.owner = marked
            block.ops[position] = marked


def _in_range(op: Op, facts: dict[Value, Range]) -> bool:
    assert isinstance(op, Binary)
    right = facts[op.operands[1]]
    if op.kind in ("floordiv", "mod"):
        return right.low >= 1
    return op.kind in ("shl", "shr") and right.low >= 0 and right.high < op.result.tile.dtype.bits
