"""Which other operations of a block touch the tensor that one writes, so that its threads may have to meet in between.

The threads of a block hold a tile together: an element may be read by one thread and written by another, and nothing but a
barrier orders the two.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.ir.core import Access, Block, Effect, Function, Op, Value
from tilec.ir.ops import For


def reads_before(function: Function, op: Op, tensor: Value) -> list[Op]:
    """Operations that read `tensor` and may run before `op` in the same block of the grid. An `Out` has none."""
    return [
        other
        for other in _neighbours(function.body, op, later=False) or ()
        if other.effect is Effect.READ and _touches(other, tensor)
    ]


def is_touched_after(function: Function, op: Op, tensor: Value) -> bool:
    """Whether anything on `tensor` may run after `op` in the same block of the grid. An `Out` is written only once and read
    never, so nothing waits for it."""
    if function.parameter_of(tensor).access is Access.OUT:
        return False
    return any(_touches(other, tensor) for other in _neighbours(function.body, op, later=True) or ())


def _neighbours(block: Block, op: Op, *, later: bool) -> list[Op] | None:
    """What may run later (or earlier) than `op`: None where the block does not hold it. The other region of a branch never
    runs in the same pass; all of a loop's body does."""
    for position, outer in enumerate(block.ops):
        inside = [] if outer is op else next(
            (found for region in outer.regions if (found := _neighbours(region, op, later=later)) is not None), None
        )  # fmt: skip
        if inside is None:
            continue
        if isinstance(outer, For):
            inside = list(outer.regions[0].walk())
        return [*inside, *_walk(block.ops[position + 1 :] if later else block.ops[:position])]
    return None


def _walk(ops: list[Op]) -> Iterator[Op]:
    yield from Block(ops=ops).walk()


def _touches(op: Op, tensor: Value) -> bool:
    return op.effect in (Effect.READ, Effect.WRITE, Effect.ATOMIC) and tensor in op.operands
