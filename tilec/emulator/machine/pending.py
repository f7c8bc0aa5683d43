"""The clusters of a launch that have not started.

In: all clusters of a launch in the order in which they start. Out: the blocks of the next wave, or one cluster whose launch is
cancelled (`clusterlaunchcontrol`). Each cluster leaves once. A program that cancels launches starts in small waves, so that
some are left to cancel.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tilec.emulator.errors import UnsupportedPtx
from tilec.emulator.machine.launch_state import LaunchState, Shape

CLUSTER_LANES: Final = 4096
"""The most resident threads of a launch with clusters of several blocks, which order memory by pairs of threads (`clocks`)."""
CANCELLING_CLUSTERS: Final = 2
"""Clusters of a wave of a program that cancels launches, with seed 0; other seeds choose 1 to 3."""


class Pending:
    """`clusters`: the blocks of each cluster that has not started; `started`: the number of blocks that have;
    `cancels`: the program may cancel launches."""

    def __init__(self, launch: LaunchState, random: np.random.Generator) -> None:
        self.launch, self.random = launch, random
        self.clusters: list[list[Shape]] = []
        self.started = 0
        self.cancels = any(i.opcode == "clusterlaunchcontrol" for i in launch.function.instructions)

    def fill(self, clusters: list[list[Shape]]) -> None:
        """Sets the clusters of the launch: seed 0 starts them in this order, any other seed in random order."""
        if self.launch.seed:
            clusters = [clusters[int(k)] for k in self.random.permutation(len(clusters))]
        self.clusters = clusters

    def next_wave(self) -> tuple[list[Shape], int]:
        """The blocks that start together, whole clusters by rank, and the number of blocks that started before."""
        launch = self.launch
        lanes = launch.limits.resident_lanes
        if launch.cluster_size > 1:
            lanes = min(lanes, CLUSTER_LANES)
        count = max(1, lanes // (launch.threads * launch.cluster_size * launch.devices))
        if launch.devices > 1 and (launch.cluster_size > 1 or count < len(self.clusters)):
            raise UnsupportedPtx("a launch of several devices whose blocks are not all resident together, or form clusters")
        if self.cancels:
            count = min(count, int(self.random.integers(1, 4)) if launch.seed else CANCELLING_CLUSTERS)
        chosen, self.clusters = self.clusters[:count], self.clusters[count:]
        blocks, first = [block for cluster in chosen for block in cluster], self.started
        self.started += len(blocks)
        return blocks, first

    def cancel(self, position: int) -> Shape:
        """Cancels the launch of the cluster at `position` of `clusters`; returns its first block."""
        return self.clusters.pop(position)[0]
