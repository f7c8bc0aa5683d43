"""`setmaxnreg`: register reallocation between the warpgroups of a block (`register_pool`)."""

from __future__ import annotations

from tilec.emulator.instructions.convergence import converge
from tilec.emulator.instructions.register_pool import GROUP
from tilec.emulator.machine.frame import RESCHEDULE, Frame, Signal
from tilec.emulator.machine.registry import Decoder, control
from tilec.emulator.machine.sources import Step
from tilec.emulator.machine.wave import BLOCKED


@control("setmaxnreg")
def setmaxnreg(d: Decoder) -> Step:
    """`setmaxnreg.inc|dec.sync.aligned.u32 COUNT`."""
    d.need("inc", "dec")
    d.need("sync")
    d.need("aligned")
    d.need("u32")
    d.finish(1)
    constant = d.source(0, "u32").constant
    if constant is None:
        raise d.unsupported("a register count that is no constant")
    pool, count = d.machine.register_pool, int(constant)

    def step(frame: Frame) -> Signal:
        frame.park(d.index, BLOCKED)
        blocks, groups = frame.block, frame.thread // GROUP
        for block, group in sorted(set(zip(blocks.tolist(), groups.tolist(), strict=True))):
            pool.come(d.instruction, (block, group), count, frame.lanes[(blocks == block) & (groups == group)])
        return RESCHEDULE

    return converge(d, step)
