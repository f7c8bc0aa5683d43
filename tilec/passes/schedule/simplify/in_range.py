"""Marks divisions and shifts that one hardware instruction computes correctly: the divisor is known to be positive, or the
shift amount is known to be at least 0 and below the bit width.

The ranges are valid for every launch that satisfies the contract and use no declarations of the kernel
(`tilec.passes.analysis.ranges`), so they are valid in `unsafe` blocks too. In addition, the prover may have shown a divisor to
be positive (`tilec.passes.prover.divisors`). Lowering guards unmarked operations; their results are the same.
"""

from __future__ import annotations

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import Binary, BinaryInRange
from tilec.passes.analysis.ranges import Range, value_ranges

DIVISIONS = ("floordiv", "mod")


def mark(function: Function, positive: frozenset[Value] = frozenset()) -> Function:
    """Replace operations, in place, keeping their result values. `positive`: divisors that are proven positive."""
    facts = value_ranges(function)
    _mark(function.body, facts, positive)
    return function


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
