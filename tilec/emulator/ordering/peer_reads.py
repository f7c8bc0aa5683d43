"""Reads of what launches before this one wrote on another device.

In: an access. Out: a fault if a lane reads an allocation of another device and no release of that device happens before it. A
device's launches are complete and visible to its own threads when they begin, or after their grid dependency wait (`prior_
launches` finds a release before that); to other devices they are so only through a release and an acquire whose scopes contain
both (PTX ISA, section 8.10, "Causality order").
"""

from __future__ import annotations

import numpy as np

from tilec.emulator.machine.access import Access
from tilec.emulator.machine.faults import Recorder
from tilec.emulator.machine.memory import Memory
from tilec.emulator.machine.wave import Wave
from tilec.emulator.ordering.clocks import Clocks
from tilec.emulator.ptx.syntax import Instruction


class PeerReads:
    """Nothing is kept: what a lane knows of another device's lanes is in `clocks`."""

    def __init__(self, memory: Memory, wave: Wave, clocks: Clocks, faults: Recorder) -> None:
        self.memory, self.wave, self.clocks, self.faults = memory, wave, clocks, faults

    def check(self, access: Access, instruction: Instruction) -> None:
        """Checks reads."""
        if self.wave.devices == 1 or not len(access.index):
            return
        devices = self.wave.device[self.wave.block[access.lanes]]
        for allocation in access.allocations(self.memory):
            if allocation.device is None:
                continue
            inside = (access.index >= allocation.start) & (access.index < allocation.end)
            others = np.flatnonzero(inside & (devices != allocation.device))
            if not len(others):
                continue
            theirs = np.flatnonzero(self.wave.device[self.wave.block] == allocation.device)
            early = others[self.clocks.rows(access.lanes[others])[:, theirs].max(axis=1) == 0]
            if len(early):
                text = "memory of another device, which may not have come as far"
                lane, index = int(access.lanes[early[0]]), int(access.index[early[0]])
                self.faults.add("peer", text, instruction, lane, index=index, count=len(early))
