"""Blocks of a cluster that exit: their shared memory ends with them.

PTX ISA, "State spaces: shared": shared memory lives as long as its block. In: lanes that exit. Out: a fault if a peer's access
to the block's shared memory is not ordered before the exit, although no schedule needs to show it, or if a peer's arrival at
one of its mbarriers was never waited for. An access that does come later is refused by `cluster_windows`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.instructions.mbarrier_state import BYTES, Mbarriers
from tilec.emulator.machine.faults import Recorder
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.subsystem import Subsystem
from tilec.emulator.machine.wave import Wave
from tilec.emulator.machine.windows import Windows
from tilec.emulator.ordering.ordering import Ordering
from tilec.emulator.ordering.races import ATOMIC, LANE_BITS, LANE_MASK, SEVERAL, SEVERAL_IN_BLOCK

Index = NDArray[np.int64]


class ClusterExits(Subsystem):
    """Only launches with clusters of several blocks need it."""

    def __init__(self, wave: Wave, windows: Windows, mbarriers: Mbarriers, ordering: Ordering, faults: Recorder) -> None:
        self.wave, self.windows, self.mbarriers, self.ordering, self.faults = wave, windows, mbarriers, ordering, faults

    def leave(self, frame: Frame) -> None:
        cluster = self.windows.cluster
        if cluster is None:
            return
        for block in self.wave.ending_blocks(frame.lanes):
            cluster.ended[block] = True
            self._end(block, self.wave.lanes_of_block(block))

    def _end(self, block: int, lanes: Index) -> None:
        clocks = self.ordering.clocks
        known = clocks.rows(lanes).max(axis=0)
        known[lanes] = clocks.now
        heard = clocks.heard_rows(lanes).max(axis=0)
        heard[lanes] = clocks.now
        accesses = [*self._stamped(block, lanes, known, heard), *self._strong(block, known)]
        if accesses:
            lane, index = accesses[0]
            text = "a block may exit before a peer's access to its shared memory"
            self.faults.add("cluster", text, None, lane, index=index, count=len(accesses), distinct=text)
        for record in self.mbarriers.live.values():
            if record.block == block:
                for lane, time, phase, instruction in record.remote_arrivals:
                    if phase >= record.observed and time > known[lane]:
                        text = "a block may exit before a peer's arrival at its mbarrier"
                        self.faults.add("cluster", text, instruction, lane, index=record.index, distinct=text)

    def _stamped(self, block: int, lanes: Index, known: Index, heard: Index) -> list[tuple[int, int]]:
        """(lane, index) of plain accesses by peers that the block does not know, or of the async proxy and not heard of."""
        window, shadow, wave = self.windows.shared[block], self.ordering.shadow, self.wave
        first_lane = self.ordering.clocks.first_lane
        granules = np.arange(window.start >> shadow.shift, (window.end >> shadow.shift) + 1)
        found: list[tuple[int, int]] = []
        for stamps, table, readers in (
            (shadow.writes[granules], shadow.async_writes, shadow.writers),
            (shadow.reads[granules], shadow.async_reads, shadow.readers),
        ):
            plain = stamps & ~ATOMIC
            for at in np.flatnonzero(plain != 0):
                code, time = int(plain[at] & LANE_MASK), int(plain[at] >> LANE_BITS)
                if code < SEVERAL_IN_BLOCK:
                    members = np.array([code - 1 - first_lane])
                elif code == SEVERAL:
                    members = wave.lanes_of_cluster(int(wave.cluster[block]))
                else:
                    members = wave.lanes_of_block(code - SEVERAL_IN_BLOCK - int(wave.block_number[0]))
                peers = members[wave.block[members] != block]
                where = granules[at : at + 1]
                reached = heard if where[0] < len(table) and table[where[0]] == stamps[at] else known
                if not len(peers) or (reached[peers] >= time).all():
                    continue
                if code >= SEVERAL_IN_BLOCK and code != SEVERAL and readers is not None:
                    number = np.array([code - SEVERAL_IN_BLOCK])
                    if any(readers.known(where, np.array([lane]), number)[0] for lane in lanes):
                        continue
                found.append((int(peers[reached[peers] < time][0]), int(where[0]) << shadow.shift))
        return found

    def _strong(self, block: int, known: Index) -> list[tuple[int, int]]:
        """(lane, index) of strong accesses by peers that the block does not know, except operations on its mbarriers."""
        window, shadow, wave = self.windows.shared[block], self.ordering.shadow, self.wave
        barriers = {
            granule
            for index in self.mbarriers.live
            for granule in range(index >> shadow.shift, (index + BYTES - 1 >> shadow.shift) + 1)
        }
        found: list[tuple[int, int]] = []
        for granule, tables in shadow.strong.table.items():
            index = granule << shadow.shift
            if window.start <= index < window.end and granule not in barriers:
                for table in tables:
                    for (number, _), time in table.items():
                        lane = number - self.ordering.clocks.first_lane
                        if wave.block[lane] != block and time > known[lane]:
                            found.append((lane, index))
        return found
