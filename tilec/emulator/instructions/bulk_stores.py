"""The unfinished bulk stores of a wave, from shared to global memory.

A store's source is in flight until a wait on its group (`.read`), its destination until the group is complete.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import STORED
from tilec.emulator.instructions.bulk_transfers import Transfer, stamp_reads, write
from tilec.emulator.instructions.copy_groups import CopyGroups
from tilec.emulator.machine.access import Access
from tilec.emulator.machine.frame import Frame

Index = NDArray[np.int64]


class Stores(CopyGroups[Transfer]):
    """Stores in the order in which they were issued."""

    def finish(self, lanes: Index, allowed: int, only_reads: bool) -> None:
        """Completes all but the last `allowed` groups of these lanes; with `only_reads`, only their source reads."""
        members, ordering = set(lanes.tolist()), self.accesses.ordering
        left: list[Transfer] = []
        for transfer in self.waiting:
            if transfer.lane not in members or transfer.group >= self.committed[transfer.lane] - allowed:
                left.append(transfer)
                continue
            if transfer.reading:
                ordering.in_flight.end_reads(transfer.operation)
                stamp_reads(ordering.shadow, transfer.source, transfer.lane)
                transfer.reading = False
            if only_reads:
                left.append(transfer)
                continue
            ordering.in_flight.end(transfer.operation)
            write(self.accesses, transfer, transfer.lane)
            if transfer.poison.any():
                flags = np.where(transfer.poison != 0, transfer.poison | STORED, 0).astype(np.uint8)
                self.accesses.memory.poison[transfer.target] = flags
                touched = Access(None, transfer.target, None, 1, np.full(len(flags), transfer.lane))
                self.accesses.note_poison(touched, flags[:, None], transfer.instruction)
        self.waiting = left

    def leave(self, frame: Frame) -> None:
        """Lanes exit: their stores complete, but one that still reads shared memory is a fault."""
        if not self.waiting:
            return
        members = set(frame.lanes.tolist())
        for transfer in self.waiting:
            if transfer.lane in members and transfer.reading:
                self.accesses.faults.add(
                    "async",
                    "a thread ends while its bulk store still reads shared memory",
                    transfer.instruction,
                    transfer.lane,
                )
        self.committed[frame.lanes] += 1
        self.finish(frame.lanes, 0, False)
