"""Every strong access (atomic, volatile, relaxed, acquire, release) to each granule of memory since its last plain write.

In: granules, lanes, whether they write, and the reach of their scope (`scopes`). Out: which accesses conflict with an unordered
recorded one. Invariant: no record is merged or dropped before a plain write to its granule, so a plain access is checked
against every strong one. Two strong accesses conflict only if the scope of either excludes the other's thread (PTX ISA,
section 8.7.1 Morally strong operations). The record is a Python dict, because strong accesses are few.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.ordering.clocks import Clocks
from tilec.emulator.ordering.scopes import narrower, within

Index = NDArray[np.int64]
Times = dict[tuple[int, int], int]
"""Times by launch-wide lane number and reach of the scope."""


class StrongAccesses:
    """`table`: for each granule the time of the last read, and of the last write, by each lane. `on_drop` is called with
    every granule whose record a plain write replaces."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self.table: dict[int, tuple[Times, Times]] = {}
        self.on_drop: list[Callable[[int], None]] = []
        self._recorded: NDArray[np.bool_] = np.zeros(0, np.bool_)

    def forget(self, first: int, last: int) -> None:
        """Drops granules that get a new owner."""
        for granule in [granule for granule in self.table if first <= granule <= last]:
            del self.table[granule]
        self._recorded[first : last + 1] = False

    def record_access(self, where: Index, lanes: Index, is_write: bool, reach: int) -> None:
        """Records accesses of granules [m, k] by lanes [m] now."""
        size = int(where.max()) + 1 if where.size else 0
        if size > len(self._recorded):
            self._recorded = np.concatenate(
                [self._recorded, np.zeros(max(size, 2 * len(self._recorded)) - len(self._recorded), np.bool_)]
            )
        self._recorded[where] = True
        now, first = self.clocks.now, self.clocks.first_lane
        for row, lane in zip(where.tolist(), lanes.tolist(), strict=True):
            for granule in row:
                self.table.setdefault(granule, ({}, {}))[is_write][lane + first, reach] = now

    def replace(self, where: Index, lane: int, time: int, observer: int) -> None:
        """Records the write of granules [m, k] by a lane at a time, of any scope, as one by `observer` now."""
        clocks = self.clocks
        number, heir = lane + clocks.first_lane, observer + clocks.first_lane
        for granule in where.reshape(-1).tolist():
            writes = self.table.setdefault(granule, ({}, {}))[True]
            for key in [key for key, then in writes.items() if key[0] == number and then == time]:
                del writes[key]
                writes[heir, key[1]] = clocks.now

    def drop(self, where: Index) -> None:
        """Drops the records of granules that a plain write overwrites: an access ordered after that write is ordered after
        all earlier ones."""
        if self.table:
            for granule in np.unique(where[self._is_recorded(where)]).tolist():
                del self.table[granule]
                self._recorded[granule] = False
                for action in self.on_drop:
                    action(granule)

    def _is_recorded(self, where: Index) -> NDArray[np.bool_]:
        inside = where < len(self._recorded)
        return inside & self._recorded[np.where(inside, where, 0)]

    def conflicts(
        self, where: Index, lanes: Index, *, with_writes: bool, strong: bool, reach: int = 0
    ) -> NDArray[np.bool_] | None:
        """Which accesses of granules [m, k] by lanes [m] are not ordered after a recorded read (or write, `with_writes`). A
        `strong` access of scope `reach` conflicts only if one of the two lies outside the scope of the other."""
        if not self.table:
            return None
        conflicting = self._is_recorded(where)
        if not conflicting.any():
            return None
        clocks = self.clocks
        threads = clocks.wave.threads
        for row, column in zip(*np.nonzero(conflicting), strict=True):
            own = int(lanes[row]) + clocks.first_lane
            others = [
                (number, time)
                for (number, their_reach), time in self.table[int(where[row, column])][with_writes].items()
                if number != own and not (strong and within(narrower(reach, their_reach), number // threads, own // threads))
            ]
            if not others:
                conflicting[row, column] = False
                continue
            writers, times = np.array(others, np.int64).T
            ordered = clocks.knows(np.full(len(writers), lanes[row]), writers, times)
            conflicting[row, column] = not ordered.all()
        return conflicting if conflicting.any() else None
