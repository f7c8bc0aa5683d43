"""How often loops of constant bounds repeat their operations."""

from __future__ import annotations

from tilec.ir.core import Block, Op
from tilec.ir.ops import Constant, For


def trips(loop: For) -> int:
    """Iterations of a loop of constant bounds; else 1."""
    numbers = _constant_bounds(loop)
    if numbers is None:
        return 1
    lower, upper, step = numbers
    return max(0, -(-(upper - lower) // step))


def has_constant_bounds(loop: For) -> bool:
    """Whether the kernel alone decides how many iterations a loop has."""
    return _constant_bounds(loop) is not None


def _constant_bounds(loop: For) -> tuple[int, int, int] | None:
    bounds = [value.owner for value in (loop.lower, loop.upper, loop.step)]
    numbers = [int(owner.value) for owner in bounds if isinstance(owner, Constant)]
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else None


def repeats(block: Block, outside: int = 1) -> dict[Op, int]:
    """For every operation, the product of the iterations of the loops around it."""
    found: dict[Op, int] = {}
    for op in block.ops:
        found[op] = outside
        inner = outside * trips(op) if isinstance(op, For) else outside
        for region in op.regions:
            found |= repeats(region, inner)
    return found
