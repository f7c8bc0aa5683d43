"""The blocks that are resident together, and where each of their threads is.

All threads of a wave are lanes. In: blocks. Out: per-lane arrays: `block` and `warp` (indices in the wave), `thread` (linear in
the block), `lane_in_warp`, `pc` and `status`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

READY: Final = 0
BLOCKED: Final = 1
EXITED: Final = 2
WARP: Final = 32
Index = NDArray[np.int64]


class Wave:
    """Empty until `start`. `block_ids` [blocks, 3], `block_number` (launch-wide), `cluster` (index in the wave) and `rank` (in
    the cluster) are by block, `warp_sizes` by warp. The blocks of a cluster are adjacent, by rank. With several `devices` each
    has the same blocks, one device's after the other's; `device` is by block, and `device_blocks` how many each has, 0 for one
    device."""

    def __init__(self, threads: int, cluster_size: int = 1, devices: int = 1) -> None:
        self.threads, self.cluster_size, self.devices = threads, cluster_size, devices
        self.start((), 0)

    def start(self, blocks: Sequence[tuple[int, int, int]], first_number: int) -> None:
        """Makes these blocks resident, with all threads at the first instruction. `first_number` counts the blocks of earlier
        waves."""
        blocks = [*blocks] * self.devices
        threads, per_block = self.threads, -(-self.threads // WARP)
        self.block_count, self.lane_count = len(blocks), len(blocks) * threads
        self.warp_count = len(blocks) * per_block
        self.device_blocks = len(blocks) // self.devices if self.devices > 1 else 0
        self.device: Index = np.repeat(np.arange(self.devices), len(blocks) // self.devices)
        self.block_ids = np.array(blocks, np.int64).reshape(-1, 3)
        self.block_number: Index = first_number + np.arange(len(blocks))
        self.cluster: Index = np.arange(len(blocks)) // self.cluster_size
        self.rank: Index = np.arange(len(blocks)) % self.cluster_size
        lanes: Index = np.arange(self.lane_count)
        self.block: Index = lanes // threads
        self.thread: Index = lanes % threads
        self.warp: Index = self.block * per_block + self.thread // WARP
        self.lane_in_warp: Index = self.thread % WARP
        self.warp_sizes = np.bincount(self.warp, minlength=self.warp_count)
        self.pc, self.status = np.zeros(self.lane_count, np.int64), np.zeros(self.lane_count, np.int8)

    def wake(self, lanes: Index, advance: bool = True) -> None:
        """Makes blocked lanes ready, at the next instruction unless `advance` is False."""
        self.status[lanes] = READY
        if advance:
            self.pc[lanes] += 1

    def whole_warps(self, lanes: Index) -> bool:
        """Whether these lanes include every thread of each of their warps."""
        counts = np.bincount(self.warp[lanes], minlength=self.warp_count)
        return bool(((counts == 0) | (counts == self.warp_sizes)).all())

    def lanes_of_block(self, block: int) -> Index:
        """All lanes of a block."""
        return np.arange(block * self.threads, (block + 1) * self.threads)

    def ending_blocks(self, lanes: Index) -> list[int]:
        """The blocks whose last threads these lanes are, which exit now."""
        leaving = self.block[lanes]
        return [
            block
            for block in np.unique(leaving).tolist()
            if (self.status[self.lanes_of_block(block)] == EXITED).sum() + (leaving == block).sum() == self.threads
        ]

    def lanes_of_cluster(self, cluster: int) -> Index:
        """All lanes of a cluster."""
        count = self.threads * self.cluster_size
        return np.arange(cluster * count, (cluster + 1) * count)
