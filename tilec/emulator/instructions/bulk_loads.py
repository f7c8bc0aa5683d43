"""Bulk loads into shared memory that nobody has seen complete: a block must not end under one.

In: loads as they start and as a thread first sees their phase of the mbarrier complete; lanes as they exit. Out: a fault for
each load that is open when the last thread of its block exits. PTX ISA, "Asynchronous operations": such a load ends only where
its completion mechanism says so, and shared memory lives as long as its block.
"""

from __future__ import annotations

import numpy as np

from tilec.emulator.frame import Frame
from tilec.emulator.machine import EXITED, Machine
from tilec.emulator.syntax import Instruction


class Loads:
    """The open loads of a wave, by number: who started them, and by what instruction."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._open: dict[int, tuple[int, Instruction]] = {}
        self._next = 0
        machine.on_wave.append(self._open.clear)
        machine.on_exit.append(self._leave)

    def begin(self, lane: int, instruction: Instruction) -> int:
        """A load of a lane starts; the number to end it by."""
        self._next += 1
        self._open[self._next] = lane, instruction
        return self._next

    def end(self, number: int) -> None:
        """A thread has seen it complete."""
        self._open.pop(number, None)

    def _leave(self, frame: Frame) -> None:
        if not self._open:
            return
        machine = self.machine
        for block in np.unique(machine.block[frame.lanes]).tolist():
            lanes = machine.lanes_of_block(block)
            if (machine.status[lanes] == EXITED).sum() + (machine.block[frame.lanes] == block).sum() < len(lanes):
                continue
            for number, (lane, instruction) in list(self._open.items()):
                if machine.block[lane] == block:
                    text = "a block ends while a bulk load into its shared memory may be under way"
                    machine.faults.add("async", text, instruction, lane)
                    del self._open[number]


def loads(machine: Machine) -> Loads:
    """The launch's bulk loads."""
    found = machine.extensions.get("bulk loads")
    if found is None:
        found = machine.extensions["bulk loads"] = Loads(machine)
    return found
