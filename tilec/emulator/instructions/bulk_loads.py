"""Bulk loads into shared memory whose completion no thread has observed: their block must not exit.

In: loads when they start and when a thread first observes the completion of their mbarrier phase; lanes that exit. Out: a
fault for each open load when the last thread of its block exits. PTX ISA, "Asynchronous operations": only its completion
mechanism completes such a load, and shared memory lives as long as its block.
"""

from __future__ import annotations

import numpy as np

from tilec.emulator.machine.faults import Recorder
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.subsystem import Subsystem
from tilec.emulator.machine.wave import EXITED, Wave
from tilec.emulator.ptx.syntax import Instruction


class Loads(Subsystem):
    """The open loads of a wave, by number: the issuing lane and the instruction."""

    def __init__(self, wave: Wave, faults: Recorder) -> None:
        self.wave, self.faults = wave, faults
        self._open: dict[int, tuple[int, Instruction]] = {}
        self._next = 0

    def clear(self) -> None:
        self._open.clear()

    def begin(self, lane: int, instruction: Instruction) -> int:
        """Starts a load by a lane; returns the number for `end`."""
        self._next += 1
        self._open[self._next] = lane, instruction
        return self._next

    def end(self, number: int) -> None:
        """Ends a load whose completion a thread has observed."""
        self._open.pop(number, None)

    def leave(self, frame: Frame) -> None:
        if not self._open:
            return
        wave = self.wave
        for block in np.unique(wave.block[frame.lanes]).tolist():
            lanes = wave.lanes_of_block(block)
            if (wave.status[lanes] == EXITED).sum() + (wave.block[frame.lanes] == block).sum() < len(lanes):
                continue
            for number, (lane, instruction) in list(self._open.items()):
                if wave.block[lane] == block:
                    text = "a block ends while a bulk load into its shared memory may be under way"
                    self.faults.add("async", text, instruction, lane)
                    del self._open[number]
