"""How often loops of constant bounds repeat their operations."""

from __future__ import annotations

from tilec.ir.core import Block, Op
from tilec.ir.ops import Constant, For


def trips(loop: For) -> int:
    """Iterations of a loop of constant bounds; else 1."""
    bounds = [value.owner for value in (loop.lower, loop.upper, loop.step)]
    numbers = [int(owner.value) for owner in bounds if isinstance(owner, Constant)]
    if len(numbers) < 3:
        return 1
    lower, upper, step = numbers
    return max(0, -(-(upper - lower) // step))


def repeats(block: Block, outside: int = 1) -> dict[Op, int]:
    """For every operation, the product of the iterations of the loops around it."""
    found: dict[Op, int] = {}
    for op in block.ops:
        found[op] = outside
        inner = outside * trips(op) if isinstance(op, For) else outside
        for region in op.regions:
            found |= repeats(region, inner)
    return found
