"""Where a kernel waits for the kernel before it, so that it may begin while that one ends.

Every kernel waits for its predecessors itself, before its first access to memory, so that its launch may overlap them: their
last blocks then cost neither the launch nor the arithmetic on block ids that comes first.

That every kernel does so makes the read-only path (`ld.global.nc`) and loads marked invariant safe on `In` tensors, which want
that nothing writes the data while the kernel runs. A kernel before this one may run beside it only up to this one's wait,
which lets it go on when those before are complete and what they wrote is visible (PTX ISA, `griddepcontrol.wait`). A kernel
behind this one may begin early, but waits likewise before it touches memory, and this one is not complete while any of its
blocks still reads. Within the kernel an `In` tensor is never written, and the launch contract refuses one that shares memory
with a tensor that is (`no_alias`). The verifier refuses an access in front of the wait, and a wait that some path skips.
"""

from __future__ import annotations

from tilec.ir.core import Block, Effect, Function, Value
from tilec.ir.ops_launch import WaitPrior
from tilec.ir.types import TileType


def insert(function: Function) -> Function:
    """Insert `wait_prior` behind what follows from launch values alone, in place."""
    early = launch_values(function)
    start = [op for op in function.body.ops if op.results and set(op.results) <= early]
    rest = [op for op in function.body.ops if not (op.results and set(op.results) <= early)]
    function.body.ops = [*start, WaitPrior(), *rest]
    return function


def launch_values(function: Function, block: Block | None = None, given: set[Value] | None = None) -> set[Value]:
    """Scalars that follow from launch values and the block's place alone: those of the body, or of a `block` in it, where
    `given` are known."""
    known = {parameter.value for parameter in function.parameters if parameter.access is None} | (given or set())
    for op in (block or function.body).ops:
        scalar = all(isinstance(value.type, TileType) and not value.type.rank for value in op.results)
        if op.results and scalar and op.effect is Effect.NONE and not op.regions and set(op.operands) <= known:
            known |= set(op.results)
    return known
