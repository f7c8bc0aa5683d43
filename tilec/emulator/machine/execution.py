"""Runs the resident blocks of a machine to their end.

The scheduler picks lanes at one instruction; they run as one `Frame` until they diverge, block or exit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilec.emulator.errors import StopLaunch
from tilec.emulator.machine import deadlock
from tilec.emulator.machine.frame import Frame, Signal
from tilec.emulator.machine.machine import Machine
from tilec.emulator.machine.program import Program
from tilec.emulator.machine.wave import EXITED, Index


class Execution:
    """The program of a launch, and the vectorised steps that are left of its limit."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.program = Program(machine)
        self.steps_left = machine.launch.limits.instructions

    @property
    def steps_done(self) -> int:
        return self.machine.launch.limits.instructions - self.steps_left

    def run(self) -> None:
        """Runs the resident blocks to their end. Raises StopLaunch after a deadlock, a trap or too many instructions."""
        machine = self.machine
        while True:
            picked = machine.scheduler.pick()
            if picked is None:
                if (machine.wave.status == EXITED).all():
                    return
                woken = [subsystem.advance() for subsystem in machine.subsystems]  # all, even if an earlier one woke a lane
                if any(woken):
                    continue
                deadlock.report(machine)
                raise StopLaunch
            self.execute(*picked)

    def execute(self, frame: Frame, stops: Index, budget: int) -> None:
        """Runs a frame until it diverges, blocks, exits, reaches one of `stops`, or exhausts its budget."""
        program = self.program
        steps, ends, hits = program.steps, program.ends, program.hits
        pc, remaining = frame.pc, budget
        signal: Any = None
        lock_step = self.machine.launch.seed == 0
        while True:
            end = ends[pc]
            if len(stops):
                at = int(np.searchsorted(stops, pc, side="right"))
                if at < len(stops) and stops[at] <= end:
                    end = int(stops[at]) - 1
            if end - pc >= remaining:
                end = pc + remaining - 1
            for step in steps[pc : end + 1]:
                signal = step(frame)
            hits[pc] += frame.n
            hits[end + 1] -= frame.n
            remaining -= end + 1 - pc
            self.steps_left -= end + 1 - pc
            if program.straight[end] or signal is None:
                pc = end + 1
            elif isinstance(signal, Signal):
                return
            else:
                pc = signal
            if remaining <= 0 or (len(stops) and (pc in stops or (lock_step and pc > stops[0]))) or self.steps_left < 0:
                break
        if remaining <= 0:
            self.machine.scheduler.yield_frame()
        frame.park(pc)
        if self.steps_left < 0:
            self.machine.faults.add("limit", f"more than {self.machine.launch.limits.instructions} instructions", None)
            raise StopLaunch
