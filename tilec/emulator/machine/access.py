"""Checked accesses: valid indices into memory of a frame's lanes (`locator`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.machine.memory import Allocation, Memory

Index = NDArray[np.int64]


@dataclass(slots=True)
class Access:
    """Checked lanes of a frame: `positions` in the frame (None: all of them), `index` into memory of each, and the one
    allocation that all of them access (None if several). Each access has `width` bytes."""

    positions: Index | None
    index: Index
    allocation: Allocation | None
    width: int
    lanes: Index

    def part(self, offset: int, width: int) -> Access:
        """`width` bytes of each access, from the byte `offset` of it on."""
        return Access(self.positions, self.index + offset, self.allocation, width, self.lanes)

    def allocations(self, memory: Memory) -> list[Allocation]:
        """Every allocation that is accessed."""
        if self.allocation is not None:
            return [self.allocation]
        return [memory.allocations[int(owner)] for owner in np.unique(memory.owner[self.index >> 8])]

    def space(self, memory: Memory) -> str:
        """The state space of the first allocation, "" without lanes."""
        allocations = self.allocations(memory) if len(self.index) else []
        return allocations[0].space if allocations else ""
