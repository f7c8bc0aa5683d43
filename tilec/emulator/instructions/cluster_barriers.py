"""`barrier.cluster.arrive` and `.wait` (PTX ISA, "barrier.cluster"); `cluster_barrier_state` keeps the phases."""

from __future__ import annotations

from typing import Any

from tilec.emulator.instructions.convergence import converge
from tilec.emulator.machine.frame import RESCHEDULE, Frame
from tilec.emulator.machine.registry import Decoder
from tilec.emulator.machine.sources import Step
from tilec.emulator.machine.wave import BLOCKED


def cluster_barrier(d: Decoder) -> Step:
    """Decodes what follows `barrier.cluster`."""
    mode = d.need("arrive", "wait")
    order = d.take("release", "relaxed") if mode == "arrive" else d.take("acquire")
    aligned = d.flag("aligned")
    d.finish(0)
    barriers, wave = d.machine.cluster_barriers, d.machine.wave

    def arrive(frame: Frame) -> Any:
        frame.park(d.index + 1)
        barriers.arrive(frame.lanes, d.instruction, relaxed=order == "relaxed")
        return RESCHEDULE

    def wait(frame: Frame) -> Any:
        frame.park(d.index + 1)
        blocked = barriers.wait(frame.lanes, d.instruction)
        wave.pc[blocked], wave.status[blocked] = d.index, BLOCKED
        return RESCHEDULE

    step = arrive if mode == "arrive" else wait
    return converge(d, step) if aligned else step
