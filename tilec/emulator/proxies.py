"""Which generic writes the async proxy sees: fences go in, missing ones come out.

PTX ISA, section 8, "Proxies" and `fence.proxy.async`. `wgmma` and bulk copies read shared memory through the async proxy. A
write of the generic proxy (`st`, `cp.async`, `stmatrix`) is seen there only if a proxy fence lies between write and read in
causality order; any thread on the way may execute it. Simplified: the fence of a thread covers that thread's own writes, and
what it knew through a barrier of its block; a fence by a third thread that learnt of the write through an mbarrier is not seen.
A bulk copy reads global memory through it too, where a fence `.shared::cta` orders nothing, as one `.global` does not in shared
memory. An mbarrier is made by the generic proxy, and a bulk copy counts its bytes there through the async proxy: a fence lies
between too, which may be `fence.mbarrier_init` of the thread that made it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.races import ATOMIC, LANE_BITS, LANE_MASK
from tilec.emulator.syntax import Instruction

if TYPE_CHECKING:
    from tilec.emulator.machine import Machine

Index = NDArray[np.int64]
READS: Final = "the async proxy reads what the generic proxy wrote with no fence.proxy.async between"
COUNTS: Final = "the async proxy counts on an mbarrier with no fence.proxy.async since it was made"


@dataclass(slots=True)
class _Fence:
    """`time` at which `lanes` (mask over the wave) executed it; `horizon`: the last barrier of each block then. `of_barriers`:
    it is `fence.mbarrier_init`, of mbarriers that the thread itself made. `space`: the only one it is of."""

    time: int
    lanes: NDArray[np.bool_]
    horizon: Index
    of_barriers: bool
    space: str | None


class Proxies:
    """The fences of a wave, and which granules the async proxy itself wrote last."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.fences: list[_Fence] = []
        self._written: Index = np.zeros(0, np.int64)
        machine.on_wave.append(self.clear)

    def clear(self) -> None:
        """A new wave."""
        self.fences.clear()
        self._written[:] = 0

    def fence(self, lanes: Index, *, of_barriers: bool = False, space: str | None = None) -> None:
        """`fence.proxy.async` by these lanes, of the space `global` or `shared` or of both, or `fence.mbarrier_init`."""
        clocks = self.machine.clocks
        mask = np.zeros(self.machine.lane_count, np.bool_)
        mask[lanes] = True
        self.fences.append(_Fence(clocks.now, mask, clocks.block_time.copy(), of_barriers, space))
        clocks.now += 1  # what comes now is not covered

    def wrote(self, granules: Index) -> None:
        """The async proxy wrote these granules of the race shadow, and the shadow knows it."""
        writes = self.machine.shadow.writes
        if len(self._written) < len(writes):
            self._written = np.concatenate([self._written, np.zeros(len(writes) - len(self._written), np.int64)])
        self._written[granules] = writes[granules]

    def check(
        self, granules: Index, reader: int, instruction: Instruction, index: int, *, barrier: bool = False,
        space: str = "shared",
    ) -> None:  # fmt: skip
        """Reports generic writes of these granules of a `space` that the async proxy, used by lane `reader`, may not see;
        `barrier`: they are an mbarrier on which it counts."""
        machine = self.machine
        stamps = machine.shadow.writes[granules]
        if len(self._written):
            known = granules < len(self._written)
            own = np.zeros(len(granules), np.bool_)
            own[known] = self._written[granules[known]] == stamps[known]
            stamps = stamps[~own]
        stamps = np.unique(stamps)
        stamps = stamps[stamps != 0] & ~ATOMIC
        if not len(stamps):
            return
        times, writers = stamps >> LANE_BITS, (stamps & LANE_MASK) - 1 - machine.clocks.first_lane
        inside = (writers >= 0) & (writers < machine.lane_count)
        times, writers = times[inside], writers[inside]
        missing = np.ones(len(times), np.bool_)
        for fence in reversed(self.fences):
            if not missing.any():
                return
            if (barrier or not fence.of_barriers) and fence.space in (None, space):
                missing[missing] &= ~self._covers(fence, reader, times[missing], writers[missing])
        if missing.any():
            text = COUNTS if barrier else READS
            machine.faults.add("proxy", text, instruction, reader, index=index, count=int(missing.sum()), distinct=text)

    def _covers(self, fence: _Fence, reader: int, times: Index, writers: Index) -> NDArray[np.bool_]:
        """Which writes a fence orders before the async reads of `reader`."""
        clocks, block = self.machine.clocks, self.machine.block
        readers = np.full(len(writers), reader)
        own = fence.lanes[writers] & (times <= fence.time)
        seen = own & clocks.knows(readers, writers + clocks.first_lane, np.full(len(writers), fence.time))
        if fence.of_barriers:
            return seen
        members = np.flatnonzero(fence.lanes & (block == block[reader]))
        if len(members) and (fence.lanes[reader] or self._known(fence, reader, members)):
            seen |= (block[writers] == block[reader]) & (times <= fence.horizon[block[reader]])
        if fence.lanes[reader] and clocks.known is not None:
            seen |= clocks.knows(readers, writers + clocks.first_lane, times) & (times <= fence.time)
        return seen

    def _known(self, fence: _Fence, reader: int, members: Index) -> bool:
        clocks = self.machine.clocks
        others = np.full(len(members), reader)
        return bool(clocks.knows(others, members + clocks.first_lane, np.full(len(members), fence.time)).any())


def proxies(machine: Machine) -> Proxies:
    """The launch's proxies."""
    found = machine.extensions.get("proxies")
    if found is None:
        found = machine.extensions["proxies"] = Proxies(machine)
    return found
