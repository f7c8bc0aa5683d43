"""What `fence.mbarrier_init` publishes: the mbarriers that its thread made, and nothing else.

PTX ISA, "membar/fence": `fence.mbarrier_init.release.cluster` orders only the thread's earlier `mbarrier.init`. The arrival at
a barrier of the cluster may then be relaxed; after the wait every thread of the cluster may use these mbarriers, although
other accesses are not ordered. In: fences, arrivals and waits. Out: whether a lane knows a lane's mbarriers up to a time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.ordering.clocks import Clocks

Index = NDArray[np.int64]
Published = dict[int, int]
"""By maker, the time of its last fence."""


class BarrierInits:
    """`_fences`: the time of each lane's last fence; `_known`: what each lane has learned."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self._fences: Published = {}
        self._known: dict[int, Published] = {}

    def clear(self) -> None:
        """Starts a new wave."""
        self._fences.clear()
        self._known.clear()

    def fence(self, lanes: Index) -> None:
        """`fence.mbarrier_init` by these lanes, now."""
        self._fences.update(dict.fromkeys(lanes.tolist(), self.clocks.now))

    def publish(self, lanes: Index, earlier: Published) -> Published:
        """`earlier` and what these lanes have fenced or learned."""
        found = dict(earlier)
        for lane in lanes.tolist() if self._fences else ():
            for maker, time in ((lane, self._fences.get(lane, 0)), *self._known.get(lane, {}).items()):
                if time > found.get(maker, 0):
                    found[maker] = time
        return found

    def learn(self, lanes: Index, published: Published) -> None:
        """These lanes learn what was published, which must not change afterwards."""
        if published:
            self._known.update(dict.fromkeys(lanes.tolist(), published))

    def knows(self, lane: int, makers: Index, times: Index) -> NDArray[np.bool_]:
        """Whether a lane knows the mbarriers that each of `makers` made up to its time."""
        known = self._known.get(lane, {})
        return np.array([known.get(int(m), 0) >= int(t) for m, t in zip(makers, times, strict=True)], np.bool_)
