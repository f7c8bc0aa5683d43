"""Shared memory of the blocks of a cluster, as its threads address it: the block's rank from bit 24 up, the offset below.

PTX ISA, "State spaces: shared" (.shared::cta, .shared::cluster) and `mapa`. The ISA only promises `mapa`; the encoding is that
of sm_90 and later chips, and programs rely on it: an address of the own window names the own block in both state spaces, and
clearing bit 24 gives the same offset in the even block of a pair. Only launches with clusters of several blocks use this.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.machine.memory import SHARED_START
from tilec.emulator.machine.wave import Wave

Index = NDArray[np.int64]
RANK_SHIFT: Final = 24
OFFSETS: Final = (1 << RANK_SHIFT) - 1
"""Mask of the offset in a block's window."""


class ClusterWindows:
    """`bases`: the index in memory of each block's window less its first offset; `ended`: the blocks that have exited; `met`
    [lanes]: the lane has passed a barrier of its cluster, so all blocks of the cluster have started."""

    def __init__(self, wave: Wave, size: int) -> None:
        self.wave, self.size = wave, size
        self.bases: Index = np.zeros(0, np.int64)
        self.ended: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.met: NDArray[np.bool_] = np.zeros(0, np.bool_)

    def start(self, bases: Index) -> None:
        """Starts a new wave."""
        self.bases, self.ended = bases, np.zeros(len(bases), np.bool_)
        self.met = np.zeros(self.wave.lane_count, np.bool_)

    def blocks(self, lanes: Index, address: Index) -> Index:
        """The block in the wave that owns each lane's address; -1 for a rank that does not exist."""
        rank = address >> RANK_SHIFT
        own = self.wave.block[lanes]
        return np.where((rank >= 0) & (rank < self.wave.cluster_size), own - self.wave.rank[own] + rank, -1)

    def resolve(self, lanes: Index, address: Index, peers: bool) -> Index:
        """Indices into memory, -1 for an address outside the windows, or (without `peers`) the own one."""
        block, offset = self.blocks(lanes, address), address & OFFSETS
        valid = (block >= 0) & (offset >= SHARED_START) & (offset < SHARED_START + self.size)
        valid &= ~self.ended[np.where(valid, block, 0)]
        if not peers:
            valid &= block == self.wave.block[lanes]
        return np.where(valid, self.bases[np.where(valid, block, 0)] + offset, -1)

    def early(self, lanes: Index, address: Index, known: Index | None) -> NDArray[np.bool_]:
        """Which lanes access a peer that may not have started: they have passed no barrier of the cluster and know (`known`,
        by lanes of the wave) nothing that a thread of the peer did."""
        block = self.blocks(lanes, address)
        found = (block >= 0) & (block != self.wave.block[lanes]) & ~self.met[lanes]
        if known is not None:
            for at in np.flatnonzero(found):
                times: Index = known[lanes[at], self.wave.lanes_of_block(int(block[at]))]
                found[at] = not int(times.max())
        return found

    def refusals(self, lanes: Index, address: Index, peers: bool) -> Iterator[tuple[str, str, NDArray[np.bool_]]]:
        """(kind of fault, message, lanes at fault) of addresses whose rank is wrong."""
        block = self.blocks(lanes, address)
        exists = block >= 0
        if not exists.all():
            text = f"a block of a rank that a cluster of {self.wave.cluster_size} does not have"
            yield "cluster", text, ~exists
        own = block == self.wave.block[lanes]
        if not peers and (exists & ~own).any():
            yield "space", "a .shared::cta access in the shared memory of another block", exists & ~own
        gone = exists & self.ended[np.where(exists, block, 0)] & (own | peers)
        if gone.any():
            yield "cluster", "shared memory of a block that has exited", gone
