"""Issued asynchronous copies of a wave, in groups that each lane commits.

In: copies, commits, and lanes that exit. Out: the copies that wait. The instruction family decides when a copy completes and
what it does then.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.machine.accesses import Accesses
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.subsystem import Subsystem
from tilec.emulator.machine.wave import Wave
from tilec.emulator.ordering.in_flight import NOTHING

T = TypeVar("T")


class CopyGroups(Subsystem, Generic[T]):
    """Unfinished copies of a wave; `committed`: the number of groups that each lane has committed."""

    def __init__(self, wave: Wave, accesses: Accesses) -> None:
        self.wave, self.accesses = wave, accesses
        self.waiting: list[T] = []
        self.committed: NDArray[np.int64] = NOTHING

    def clear(self) -> None:
        self.waiting.clear()
        self.committed = np.zeros(self.wave.lane_count, np.int64)

    def commit(self, frame: Frame) -> None:
        """Commits a group of each lane under the frame's mask."""
        self.committed[frame.active_lanes()] += 1
