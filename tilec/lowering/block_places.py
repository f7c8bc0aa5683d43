"""Which values follow from the block's id: a function goes in, a set of values comes out.

What is read at such a place is most likely no other block's, so that it is read once. For hints alone: a value may be left out,
or be there without need, and nothing but speed depends on it.
"""

from __future__ import annotations

from tilec.ir.core import Function, Value
from tilec.ir.ops import BlockId, For


def of_the_block(function: Function) -> set[Value]:
    """Ids of blocks, and what is computed from them, loops' variables and results included."""
    found: set[Value] = set()
    for op in function.body.walk():
        if isinstance(op, BlockId) or not found.isdisjoint(op.operands):
            found.update(op.results)
            if isinstance(op, For):
                counted, *carried = op.regions[0].arguments
                found |= {counted} if not found.isdisjoint(op.operands[:3]) else set()
                found |= {held for held, value in zip(carried, op.initial, strict=True) if value in found}
    return found
