"""The bytes that one bulk copy moves, and how they are read and written in the race shadow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.machine.access import Access
from tilec.emulator.machine.accesses import Accesses
from tilec.emulator.ordering.in_flight import Operation
from tilec.emulator.ordering.races import LANE_BITS, Shadow
from tilec.emulator.ptx.syntax import Instruction

Index = NDArray[np.int64]
Bytes = NDArray[np.uint8]


@dataclass(slots=True)
class Transfer:
    """The bytes of a copy: positions in memory of source and destination, byte by byte, and the data and poison read."""

    source: Index
    target: Index
    data: Bytes
    poison: Bytes
    lane: int
    group: int
    instruction: Instruction
    operation: Operation
    reading: bool = True


def by_granule(shadow: Shadow, byte_indices: Index, lane: int) -> Access:
    """Accesses by a lane to the race granules that contain these bytes."""
    first = np.unique(byte_indices >> shadow.shift) << shadow.shift
    return Access(None, first, None, 1 << shadow.shift, np.full(len(first), lane))


def stamp_reads(shadow: Shadow, byte_indices: Index, lane: int) -> None:
    """Stamps the reads of the source as of now."""
    shadow.read_async(np.unique(byte_indices >> shadow.shift), (lane,))


def write(accesses: Accesses, transfer: Transfer, lane: int, *, generic: bool = False) -> None:
    """Writes the bytes through the async proxy (or the `generic` one), stamped as a write by `lane`."""
    memory, clocks, shadow = accesses.memory, accesses.ordering.clocks, accesses.ordering.shadow
    memory.data[transfer.target] = transfer.data
    memory.poison[transfer.target] = transfer.poison
    where = np.unique(transfer.target >> shadow.shift)
    shadow.writes[where] = (clocks.now << LANE_BITS) + lane + clocks.first_lane + 1
    shadow.reads[where] = 0
    if not generic:
        accesses.ordering.proxies.record_async_write(where)
