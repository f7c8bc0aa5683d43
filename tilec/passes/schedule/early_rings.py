"""Has the first copies of a loop's ring under way before a block waits for earlier kernels, where they are of resident tensors.

In: a function whose loops copy ahead through shared memory, behind its wait. Out: the same, with what fills the first stages in
front of the wait: the ring, its memory, and the copies of the first iterations, each with its condition. Shared memory is the
block's own, and no kernel that a launch overlaps writes what is copied, so nothing has to be waited for; memory then answers
while the kernel before ends.
"""

from __future__ import annotations

from tilec.ir.core import Block, Effect, Function, Op
from tilec.ir.ops import For, If
from tilec.ir.ops_launch import WaitPrior
from tilec.ir.ops_staging import AsyncCopy, SharedAlloc
from tilec.ir.ops_sync import Acquire, Commit, Ring


def hoist(function: Function) -> Function:
    """Move the copies of the first loop that has any, in place."""
    ops = function.body.ops
    wait = next((place for place, op in enumerate(ops) if isinstance(op, WaitPrior)), None)
    loop = next((place for place, op in enumerate(ops) if isinstance(op, For)), len(ops))
    start = next((place for place, op in enumerate(ops[:loop]) if isinstance(op, Ring)), loop)
    end = max((place + 1 for place, op in enumerate(ops[:loop]) if isinstance(op, Commit)), default=0)
    if wait is None or not wait < start < end:
        return function
    moved = Block(ops=ops[start:end])
    known = {parameter.value for parameter in function.parameters}
    known |= {value for op in (*ops[:wait], *moved.walk()) for value in op.results}
    if all(_is_early(function, op) for op in moved.ops) and all(set(op.operands) <= known for op in moved.walk()):
        function.body.ops = [*ops[:wait], *moved.ops, *ops[wait:start], *ops[end:]]
    return function


def _is_early(function: Function, op: Op) -> bool:
    """Whether an operation touches nothing but the ring, and what is resident."""
    if isinstance(op, AsyncCopy):
        return function.is_resident(op.source)
    if isinstance(op, If):
        return all(_is_early(function, inner) for region in op.regions for inner in region.ops[:-1])
    return isinstance(op, (Ring, SharedAlloc, Acquire, Commit)) or (op.effect is Effect.NONE and not op.regions)
