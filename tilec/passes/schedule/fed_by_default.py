"""Copies by TMA for a kernel whose schedule nobody gave, where only these let warpgroups make its products.

In: a proven function, the target and the schedule without a producer. Out: a schedule with one, or the same. `wgmma` reads a
computed operand from registers, and computes two products in a row, in loops that a producer feeds; threads that copy feed it
only whole loops of one product of two loads. So a loop such as that of attention, or of weights of four bits, would be left
to `mma.sync`, which a Hopper multiprocessor runs at half the rate or less, and to operands that threads put into place.

The producer's schedule replaces the other only if every product of every loop then is one of warpgroups. Its ring gets as many
stages as let two blocks share a multiprocessor, three at least: while one block waits for its sums, another computes on its.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilec.diagnostics.diagnostic import CompileError
from tilec.ir.core import Block, Function
from tilec.ir.layouts.shared_plan import shared_bytes
from tilec.ir.ops import For, Mma
from tilec.passes.schedule.passes import SHARED_CONVERSIONS, run_on_copy, through
from tilec.passes.schedule.product_limits import operand_dtypes
from tilec.target.families import MMA_SYNC, TMA, MemorySpace
from tilec.target.schedule import Overrides, Schedule, fed_family
from tilec.target.targets import Target

LEAST_STAGES: Final = 3
RESERVED_BYTES: Final = 1024
"""Shared memory that the system reserves for each block (CUDA programming guide, compute capability 8.x)."""
Choose = Callable[[Function, Target, Overrides], Schedule]


def fed(function: Function, target: Target, schedule: Schedule, choose: Choose) -> Schedule:
    """The schedule of `function`, which stays unchanged; `choose` makes one of overrides."""
    family = fed_family(TMA, target, None, operand_dtypes(function))
    usable = family.runs_ahead and family.accumulators is MemorySpace.REGISTERS and target.has(family)
    if not usable or any(loop.mma != MMA_SYNC.name for loop in schedule.pipelines) or not has_looped_product(function.body):
        return schedule
    try:
        found = choose(function, target, Overrides(copy=TMA))
        scheduled = run_on_copy(through(SHARED_CONVERSIONS), function, found, target)
        if has_looped_product(scheduled.body):
            return schedule
        stages = max(loop.stages for loop in found.pipelines)
        half = (target.max_shared_bytes + RESERVED_BYTES) // 2 - RESERVED_BYTES
        while stages > LEAST_STAGES and shared_bytes(scheduled) > half:
            stages -= 1
            found = choose(function, target, Overrides(copy=TMA, stages=stages))
            scheduled = run_on_copy(through(SHARED_CONVERSIONS), function, found, target)
    except CompileError:
        return schedule
    return found


def has_looped_product(block: Block, is_repeated: bool = False) -> bool:
    """Whether a loop has a product of single warps."""
    for op in block.ops:
        if isinstance(op, Mma) and is_repeated:
            return True
        if any(has_looped_product(region, is_repeated or isinstance(op, For)) for region in op.regions):
            return True
    return False
