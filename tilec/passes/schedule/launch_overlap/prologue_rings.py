"""Moves the prologue loads of a `cp.async` pipeline before the grid dependency wait if all of them read resident tensors.

In: a function whose pipelined loops come after its `wait_prior`. Out: the same, with the first pipeline's prologue before the
wait: the ring, its buffers, and the predicated copies of the first iterations. Shared memory belongs to the block, and no
kernel in flight writes a resident tensor, so none of these operations depends on the wait; their memory latency overlaps the
end of the preceding kernel.
"""

from __future__ import annotations

from tilec.ir.core import Block, Effect, Function, Op
from tilec.ir.ops import For, If
from tilec.ir.ops.launch_ops import DependencyWait
from tilec.ir.ops.staging_ops import AsyncCopy, SharedAlloc
from tilec.ir.ops.sync_ops import Acquire, Commit, Ring


def hoist(function: Function) -> Function:
    """Move the prologue of the first pipelined loop, in place."""
    ops = function.body.ops
    wait = next((index for index, op in enumerate(ops) if isinstance(op, DependencyWait)), None)
    loop = next((index for index, op in enumerate(ops) if isinstance(op, For)), len(ops))
    start = next((index for index, op in enumerate(ops[:loop]) if isinstance(op, Ring)), loop)
    end = max((index + 1 for index, op in enumerate(ops[:loop]) if isinstance(op, Commit)), default=0)
    if wait is None or not wait < start < end:
        return function
    prologue = Block(ops=ops[start:end])
    known = {parameter.value for parameter in function.parameters}
    known |= {value for op in (*ops[:wait], *prologue.walk()) for value in op.results}
    if all(_may_precede_wait(function, op) for op in prologue.ops) and all(set(op.operands) <= known for op in prologue.walk()):
        function.body.ops = [*ops[:wait], *prologue.ops, *ops[wait:start], *ops[end:]]
    return function


def _may_precede_wait(function: Function, op: Op) -> bool:
    """Whether an operation touches only the ring and resident tensors."""
    if isinstance(op, AsyncCopy):
        return function.is_resident(op.source)
    if isinstance(op, If):
        return all(_may_precede_wait(function, inner) for region in op.regions for inner in region.ops[:-1])
    return isinstance(op, (Ring, SharedAlloc, Acquire, Commit)) or (op.effect is Effect.NONE and not op.regions)
