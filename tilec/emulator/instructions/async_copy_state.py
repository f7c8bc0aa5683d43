"""The unfinished `cp.async` copies of a wave.

Source and destination of a copy are in flight until its group completes; the thread reads the one and writes the other then,
through the generic proxy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import Poison
from tilec.emulator.instructions.copy_groups import CopyGroups
from tilec.emulator.machine.access import Access
from tilec.emulator.machine.frame import Frame
from tilec.emulator.ordering.in_flight import SHIFT, Operation, granules
from tilec.emulator.ptx.syntax import Instruction

Index = NDArray[np.int64]


@dataclass(slots=True)
class Copy:
    """The copies that one instruction started: for each lane its group, destination index, granules of its source (-1: nothing
    is read, or nobody may write it), bytes and their poison."""

    lanes: Index
    group: Index
    index: Index
    sources: Index
    rows: NDArray[np.uint8]
    poison: Poison | None
    instruction: Instruction
    operation: Operation

    def part(self, chosen: NDArray[np.bool_], operation: Operation) -> Copy:
        poison = None if self.poison is None else self.poison[chosen]
        return Copy(
            self.lanes[chosen], self.group[chosen], self.index[chosen], self.sources[chosen], self.rows[chosen], poison,
            self.instruction, operation,
        )  # fmt: skip

    def granules(self, chosen: NDArray[np.bool_]) -> tuple[Index, Index]:
        """The granules that the copies of some lanes read and write."""
        sources = self.sources[chosen]
        return sources[sources >= 0], granules(self.index[chosen], self.rows.shape[1]).reshape(-1)


class Copies(CopyGroups[Copy]):
    """Copies by instruction; one that lanes complete at different times is divided."""

    def finish(self, lanes: Index, allowed: int, *, write: bool = True) -> None:
        """Completes all but the last `allowed` groups of these lanes (-1: uncommitted copies too). Without `write` their
        records are only dropped, and their bytes stay in flight."""
        bound = np.full(self.wave.lane_count, -1, np.int64)
        bound[lanes] = self.committed[lanes] - allowed
        left: list[Copy] = []
        for copy in self.waiting:
            done = copy.group < bound[copy.lanes]
            if not done.any():
                left.append(copy)
                continue
            finished = copy
            if not done.all():
                finished, rest = self._divide(copy, done)
                left.append(rest)
            if write:
                self.accesses.ordering.in_flight.end(finished.operation)
                self._write_copy(finished)
        self.waiting = left

    def _divide(self, copy: Copy, done: NDArray[np.bool_]) -> tuple[Copy, Copy]:
        """The copies of the lanes in `done` and those of the others, which end apart."""
        first, second = self.accesses.ordering.in_flight.split(copy.operation, [copy.granules(done), copy.granules(~done)])
        return copy.part(done, first), copy.part(~done, second)

    def _write_copy(self, copy: Copy) -> None:
        rows, columns = np.nonzero(copy.sources >= 0)
        if len(rows):
            self.accesses.ordering.shadow.read(copy.sources[rows, columns] << SHIFT, 1 << SHIFT, copy.lanes[rows])
        found = Access(None, copy.index, None, copy.rows.shape[1], copy.lanes)
        self.accesses.watch_write(found, copy.instruction)
        self.accesses.memory.write_rows(copy.index, copy.rows, copy.poison)

    def leave(self, frame: Frame) -> None:
        """Lanes exit: the copies that they did not wait for stay in flight for good, so any access to those bytes is a
        fault."""
        if self.waiting:
            self.finish(frame.lanes, -1, write=False)
