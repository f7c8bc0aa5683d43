"""`ld.global.nc` and `ldu` promise that the data is read-only while the launch runs (PTX ISA, ld.global.nc, ldu).

In: such reads. Out: faults, immediately if the preceding launch may still write the bytes, at the end if this launch wrote
them. The declared access of a tensor is irrelevant: a preceding launch may write a tensor that this one only reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.machine.access import Access
from tilec.emulator.machine.faults import Recorder
from tilec.emulator.machine.memory import Memory
from tilec.emulator.ordering.races import Shadow
from tilec.emulator.ptx.syntax import Instruction


@dataclass(frozen=True, slots=True)
class _Read:
    """A read of `width` bytes at each `index` by `lane` and others."""

    index: NDArray[np.int64]
    width: int
    instruction: Instruction
    lane: int


class NoncoherentReads:
    """The reads of a launch whose bytes it may write. `overlaps`: a preceding launch may still run when this one begins."""

    def __init__(self, memory: Memory, shadow: Shadow, faults: Recorder, overlaps: bool) -> None:
        self.memory, self.shadow, self.faults, self.overlaps = memory, shadow, faults, overlaps
        self.reads: list[_Read] = []

    def watch(self, access: Access, instruction: Instruction) -> None:
        """Keeps a read for `report`. Bytes that a preceding launch may still write when this one begins must not be read this
        way, even after the grid dependency wait."""
        lane = int(access.lanes[0])
        if self.overlaps and any(
            allocation.space == "global" and not allocation.resident for allocation in access.allocations(self.memory)
        ):
            text = "ld.global.nc of memory that the launch before may write while this one runs"
            self.faults.add("non-coherent", text, instruction, lane, index=int(access.index[0]))
        if access.allocation is None or access.allocation.tracked:  # otherwise a write by this launch is already a fault
            self.reads.append(_Read(np.unique(access.index), access.width, instruction, lane))

    def report(self) -> None:
        """Reports reads by ld.global.nc of bytes that this launch wrote."""
        shadow = self.shadow
        for read in self.reads:
            written = shadow.writes[shadow.granules(read.index, read.width)].any(axis=1)
            if written.any():
                at = int(read.index[np.flatnonzero(written)[0]])
                text = "ld.global.nc of bytes that the launch writes"
                self.faults.add("non-coherent", text, read.instruction, read.lane, index=at, count=int(written.sum()))
