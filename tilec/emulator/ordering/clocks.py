"""Happens-before order: what every lane of the wave knows of every other.

Time is one counter that advances at every synchronization. What lane t did at a time happens before an access by lane u now if
u is the same lane or has learned of t up to that time: through a barrier of the whole block (`block_time`) or of the whole warp
(`warp_time`), or through `acquire` of a token that another lane released (`known`, a matrix allocated at the first such
operation). Lanes of one warp are not ordered otherwise. Memory consistency model: PTX ISA, section 8.

In a launch with clusters of several blocks, signals may be relaxed or of a scope that excludes the other thread. They order no
memory, but a thread that received one knows that what was complete before it is complete. `heard` keeps this weaker order,
which suffices between operations of the async proxy. There a token has two rows, for `known` and for `heard`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import UnsupportedPtx
from tilec.emulator.machine.wave import Wave

MAX_LANES: Final = 0xC00000 - 2
"""The maximum number of threads of a launch that stamps (`races`) can distinguish."""
Index = NDArray[np.int64]
Token = NDArray[np.int64]
"""The knowledge that a release publishes: for each lane of the wave, the time up to which its accesses are visible; with two
rows in a launch with clusters, of which one row stands for both."""


class Clocks:
    """The knowledge of every lane of the wave about every other."""

    def __init__(self, wave: Wave) -> None:
        self.wave = wave
        self.now = 1
        self.first_lane = 0
        self.separate = wave.cluster_size > 1
        self.start(0)

    def start(self, first_lane: int) -> None:
        """Starts a new wave of blocks, unordered with earlier ones; `first_lane` is the launch-wide number of its lane 0."""
        if first_lane + self.wave.lane_count > MAX_LANES:
            raise UnsupportedPtx(f"a launch of more than {MAX_LANES} threads")
        self.first_lane = first_lane
        self.now += 1
        self.block_time = np.zeros(self.wave.block_count, np.int64)
        self.warp_time = np.zeros(self.wave.warp_count, np.int64)
        self.known: NDArray[np.int64] | None = None
        self.heard: NDArray[np.int64] | None = None

    def _merge(self, lanes: Index) -> None:
        """Gives these lanes what any of them knows and has heard."""
        for table in (self.known, self.heard):
            if table is not None:
                table[lanes] = table[lanes].max(axis=0)

    def block_barrier(self, blocks: Index) -> None:
        """A barrier across all threads of each of these blocks."""
        if self.known is not None:
            for block in blocks:
                self._merge(np.flatnonzero(self.wave.block == block))
        self.block_time[blocks] = self.now
        self.now += 1

    def warp_barrier(self, warps: Index) -> None:
        """A barrier with memory ordering across all threads of each of these warps (bar.warp.sync)."""
        if self.known is not None:
            for warp in warps:
                self._merge(np.flatnonzero(self.wave.warp == warp))
        self.warp_time[warps] = self.now
        self.now += 1

    def rows(self, lanes: Index) -> NDArray[np.int64]:
        """For each of these lanes, the times up to which it knows every lane, [len(lanes), lanes of the wave]."""
        wave = self.wave
        if self.known is None:
            self.known = np.zeros((wave.lane_count, wave.lane_count), np.int64)
        same_block = wave.block[lanes][:, None] == wave.block[None, :]
        same_warp = wave.warp[lanes][:, None] == wave.warp[None, :]
        found = np.maximum(self.known[lanes], np.where(same_block, self.block_time[wave.block][None, :], 0))
        return np.maximum(found, np.where(same_warp, self.warp_time[wave.warp][None, :], 0))

    def release(self, lanes: Index) -> Token:
        """A token with everything that these lanes did and knew until now; their later accesses are not included."""
        token = self.rows(lanes).max(axis=0)
        if self.separate:
            token = np.stack([token, self.heard_rows(lanes).max(axis=0)])
        token[..., lanes] = self.now
        self.now += 1
        return token

    def signal(self, lanes: Index, ordered: Token | None) -> Token | None:
        """A token for a signal of these lanes that orders only `ordered`, what fences before it published."""
        if not self.separate:
            return ordered
        heard = self.heard_rows(lanes).max(axis=0)
        heard[lanes] = self.now
        self.now += 1
        return np.stack([np.zeros_like(heard) if ordered is None else ordered if ordered.ndim == 1 else ordered[0], heard])

    def acquire(self, lanes: Index, token: Token) -> None:
        """Merges a token into the knowledge of these lanes."""
        rows = self.rows(lanes)
        assert self.known is not None
        self.known[lanes] = np.maximum(rows, token if token.ndim == 1 else token[0])
        self.hear(lanes, token)

    def hear(self, lanes: Index, token: Token | None) -> None:
        """Merges a token into what these lanes have heard, without an order of memory."""
        if self.separate and token is not None:
            rows = self.heard_rows(lanes)
            if self.heard is None:
                self.heard = np.zeros((self.wave.lane_count, self.wave.lane_count), np.int64)
            self.heard[lanes] = np.maximum(rows, token if token.ndim == 1 else token[1])

    def heard_rows(self, lanes: Index) -> NDArray[np.int64]:
        """`rows`, of what each of these lanes knows or has heard."""
        rows = self.rows(lanes)
        return rows if self.heard is None else np.maximum(rows, self.heard[lanes])

    def has_heard(self, lanes: Index, others: Index, times: Index) -> NDArray[np.bool_]:
        """`knows`, of what each lane knows or has heard."""
        found = self.knows(lanes, others, times)
        local = others - self.first_lane
        inside = (local >= 0) & (local < self.wave.lane_count)
        return found if self.heard is None else found | (inside & (self.heard[lanes, np.where(inside, local, 0)] >= times))

    def has_heard_block(self, lanes: Index, blocks: Index, times: Index) -> NDArray[np.bool_]:
        """`knows_block`, of what each lane knows or has heard."""
        found = np.zeros(len(lanes), np.bool_)
        for at in range(len(lanes)):
            members = np.flatnonzero(self.wave.block_number[self.wave.block] == blocks[at])
            times_heard = self.heard_rows(lanes[at : at + 1])[0, members]
            times_heard[members == lanes[at]] = self.now
            found[at] = len(members) > 0 and bool((times_heard >= times[at]).all())
        return found

    def knows(self, lanes: Index, others: Index, times: Index) -> NDArray[np.bool_]:
        """Whether each lane is ordered after what `others` did at `times`. `others` are launch-wide lane numbers."""
        wave = self.wave
        local = others - self.first_lane
        inside = (local >= 0) & (local < wave.lane_count)
        local = np.where(inside, local, 0)
        ordered = local == lanes
        ordered |= (wave.block[local] == wave.block[lanes]) & (times <= self.block_time[wave.block[lanes]])
        ordered |= (wave.warp[local] == wave.warp[lanes]) & (times <= self.warp_time[wave.warp[lanes]])
        if self.known is not None:
            ordered |= self.known[lanes, local] >= times
        return ordered & inside

    def knows_block(self, lanes: Index, blocks: Index, times: Index) -> NDArray[np.bool_]:
        """Whether each lane is ordered after everything that all lanes of its entry of `blocks` (launch-wide numbers) did up
        to its time."""
        wave = self.wave
        ordered = (wave.block_number[wave.block[lanes]] == blocks) & (times <= self.block_time[wave.block[lanes]])
        if self.known is None:
            return ordered
        for at in np.flatnonzero(~ordered):
            members = np.flatnonzero(wave.block_number[wave.block] == blocks[at])
            times_known = self.rows(lanes[at : at + 1])[0, members]
            times_known[members == lanes[at]] = self.now
            ordered[at] = len(members) > 0 and bool((times_known >= times[at]).all())
        return ordered
