"""Every strong access (atomic, volatile, relaxed, acquire, release) to each granule of memory since its last plain write.

In: granules, lanes, whether they write, and whether their scope is the block. Out: which accesses conflict with an unordered
recorded one. Invariant: no record is merged or dropped before a plain write to its granule, so a plain access is checked
against every strong one. Two strong accesses conflict only if the scope of either excludes the other's thread (PTX ISA,
section 8.7.1 Morally strong operations). The record is a Python dict, because strong accesses are few.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tilec.emulator.ordering.races import Clocks

Index = NDArray[np.int64]
Times = dict[tuple[int, bool], int]
"""Times by launch-wide lane number and whether the scope is the block."""


class StrongAccesses:
    """`table`: for each granule the time of the last read, and of the last write, by each lane. `on_taken` is called with
    every granule whose record a plain write replaces."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self.table: dict[int, tuple[Times, Times]] = {}
        self.on_taken: list[Callable[[int], None]] = []
        self._held: NDArray[np.bool_] = np.zeros(0, np.bool_)

    def forget(self, first: int, last: int) -> None:
        """Drops granules that get a new owner."""
        for granule in [granule for granule in self.table if first <= granule <= last]:
            del self.table[granule]
        self._held[first : last + 1] = False

    def note(self, where: Index, lanes: Index, is_write: bool, narrow: bool) -> None:
        """Records accesses of granules [m, k] by lanes [m] now."""
        most = int(where.max()) + 1 if where.size else 0
        if most > len(self._held):
            self._held = np.concatenate([self._held, np.zeros(max(most, 2 * len(self._held)) - len(self._held), np.bool_)])
        self._held[where] = True
        now, first = self.clocks.now, self.clocks.first_lane
        for row, lane in zip(where.tolist(), lanes.tolist(), strict=True):
            for granule in row:
                self.table.setdefault(granule, ({}, {}))[is_write][lane + first, narrow] = now

    def take(self, where: Index) -> None:
        """Drops the records of granules that a plain write overwrites: an access ordered after that write is ordered after
        all earlier ones."""
        if self.table:
            for granule in np.unique(where[self._holds(where)]).tolist():
                del self.table[granule]
                self._held[granule] = False
                for action in self.on_taken:
                    action(granule)

    def _holds(self, where: Index) -> NDArray[np.bool_]:
        inside = where < len(self._held)
        return inside & self._held[np.where(inside, where, 0)]

    def conflicts(
        self, where: Index, lanes: Index, *, with_writes: bool, strong: bool, narrow: bool = False
    ) -> NDArray[np.bool_] | None:
        """Which accesses of granules [m, k] by lanes [m] are not ordered after a recorded read (or write, `with_writes`). A
        `strong` access (`narrow`: of block scope) conflicts only if one of the two lies outside the scope of the other."""
        if not self.table:
            return None
        found = self._holds(where)
        if not found.any():
            return None
        clocks = self.clocks
        threads = clocks.machine.threads
        for row, column in zip(*np.nonzero(found), strict=True):
            mine = int(lanes[row]) + clocks.first_lane
            others = [
                (number, time)
                for (number, theirs), time in self.table[int(where[row, column])][with_writes].items()
                if number != mine and not (strong and ((not theirs and not narrow) or number // threads == mine // threads))
            ]
            if not others:
                found[row, column] = False
                continue
            who, times = np.array(others, np.int64).T
            ordered = clocks.knows(np.full(len(who), lanes[row]), who, times)
            found[row, column] = not ordered.all()
        return found if found.any() else None
