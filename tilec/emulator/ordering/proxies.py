"""Proxy fences, and checks for missing ones between the generic and the async proxy.

PTX ISA, section 8, "Proxies" and `fence.proxy.async`. `wgmma` and bulk copies access memory through the async proxy. A write
through the generic proxy (`st`, `cp.async`, `stmatrix`) is ordered before a read or a write there only if a proxy fence, by
any thread, lies between the two in causality order. Simplification: a fence covers the writes of its own thread and those that
the thread knew through a barrier of its block; a fence by a third thread that learned of the write through an mbarrier is not
recognized. Bulk copies also access global memory through the async proxy; `fence.proxy.async.shared::cta` does not order that,
and `.global` does not order shared memory. An mbarrier is initialized through the generic proxy and bulk copies count bytes
on it through the async proxy: the fence between may also be `fence.mbarrier_init` by the initializing thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.machine.faults import Recorder
from tilec.emulator.machine.wave import Wave
from tilec.emulator.ordering.barrier_inits import BarrierInits
from tilec.emulator.ordering.clocks import Clocks
from tilec.emulator.ordering.races import ATOMIC, LANE_BITS, LANE_MASK, Shadow
from tilec.emulator.ptx.syntax import Instruction

Index = NDArray[np.int64]
TOUCHES: Final = "the async proxy reads or writes what the generic proxy wrote with no fence.proxy.async between"
COUNTS: Final = "the async proxy counts on an mbarrier with no fence.proxy.async since it was made"


@dataclass(slots=True)
class _Fence:
    """A fence executed at `time` by `lanes` (mask over the wave); `barrier_times`: the time of each block's last barrier
    before it. `is_mbarrier_init`: it is `fence.mbarrier_init` and covers only mbarriers that the thread initialized. `space`:
    the state space it is limited to, or None."""

    time: int
    lanes: NDArray[np.bool_]
    barrier_times: Index
    is_mbarrier_init: bool
    space: str | None


class Proxies:
    """The fences of a wave. The shadow knows the granules whose last write was through the async proxy."""

    def __init__(self, wave: Wave, clocks: Clocks, shadow: Shadow, barrier_inits: BarrierInits, faults: Recorder) -> None:
        self.wave, self.clocks, self.shadow, self.faults = wave, clocks, shadow, faults
        self.barrier_inits = barrier_inits
        self.fences: list[_Fence] = []

    def clear(self) -> None:
        """Starts a new wave."""
        self.fences.clear()
        self.shadow.async_writes[:] = 0
        self.shadow.async_reads[:] = 0

    def fence(self, lanes: Index, *, is_mbarrier_init: bool = False, space: str | None = None) -> None:
        """Records `fence.proxy.async` by these lanes, for `space` `global` or `shared` or (None) both, or
        `fence.mbarrier_init`."""
        clocks = self.clocks
        mask = np.zeros(self.wave.lane_count, np.bool_)
        mask[lanes] = True
        self.fences.append(_Fence(clocks.now, mask, clocks.block_time.copy(), is_mbarrier_init, space))
        clocks.now += 1  # later writes are not covered

    def record_async_write(self, granules: Index) -> None:
        """Records that the last writes of these granules, as stamped in the shadow, were through the async proxy."""
        self.shadow.note_async_write(granules)

    def check(
        self, granules: Index, reader: int, instruction: Instruction, index: int, *, barrier: bool = False,
        space: str = "shared",
    ) -> None:  # fmt: skip
        """Reports generic writes to these granules of `space` that may be invisible to an async-proxy access issued by lane
        `reader`; `barrier`: the granules are an mbarrier on which it counts."""
        stamps = self.shadow.writes[granules]
        written = self.shadow.async_writes
        if len(written):
            known = granules < len(written)
            own = np.zeros(len(granules), np.bool_)
            own[known] = written[granules[known]] == stamps[known]
            stamps = stamps[~own]
        stamps = np.unique(stamps)
        stamps = stamps[stamps != 0] & ~ATOMIC
        if not len(stamps):
            return
        times, writers = stamps >> LANE_BITS, (stamps & LANE_MASK) - 1 - self.clocks.first_lane
        inside = (writers >= 0) & (writers < self.wave.lane_count)
        times, writers = times[inside], writers[inside]
        missing = np.ones(len(times), np.bool_)
        for fence in reversed(self.fences):
            if not missing.any():
                return
            if (barrier or not fence.is_mbarrier_init) and fence.space in (None, space):
                missing[missing] &= ~self._covers(fence, reader, times[missing], writers[missing])
        if missing.any():
            text = COUNTS if barrier else TOUCHES
            self.faults.add("proxy", text, instruction, reader, index=index, count=int(missing.sum()), distinct=text)

    def check_reads(self, readers: Index, times: Index, writer: int, instruction: Instruction, index: int) -> None:
        """Reports generic reads of shared memory, by lane and time, that an async-proxy write issued by lane `writer` may
        overtake: no fence by the reader after its read, or by `writer` when it knew of the read, lies between."""
        missing = np.ones(len(times), np.bool_)
        for fence in reversed(self.fences):
            if missing.any() and not fence.is_mbarrier_init and fence.space in (None, "shared"):
                missing[missing] &= ~self._covers(fence, writer, times[missing], readers[missing])
        if missing.any():
            text = "the async proxy writes what the generic proxy read with no fence.proxy.async between"
            self.faults.add("proxy", text, instruction, writer, index=index, count=int(missing.sum()), distinct=text)

    def _covers(self, fence: _Fence, reader: int, times: Index, writers: Index) -> NDArray[np.bool_]:
        """Which writes a fence orders before the async reads of `reader`."""
        clocks, block = self.clocks, self.wave.block
        readers = np.full(len(writers), reader)
        own = fence.lanes[writers] & (times <= fence.time)
        seen = own & clocks.knows(readers, writers + clocks.first_lane, np.full(len(writers), fence.time))
        if fence.is_mbarrier_init:
            return seen | (own & self.barrier_inits.knows(reader, writers, np.full(len(writers), fence.time)))
        members = np.flatnonzero(fence.lanes & (block == block[reader]))
        if len(members) and (fence.lanes[reader] or self._known(fence, reader, members)):
            seen |= (block[writers] == block[reader]) & (times <= fence.barrier_times[block[reader]])
        if fence.lanes[reader] and clocks.known is not None:
            seen |= clocks.knows(readers, writers + clocks.first_lane, times) & (times <= fence.time)
        return seen

    def _known(self, fence: _Fence, reader: int, members: Index) -> bool:
        clocks = self.clocks
        others = np.full(len(members), reader)
        return bool(clocks.knows(others, members + clocks.first_lane, np.full(len(members), fence.time)).any())
