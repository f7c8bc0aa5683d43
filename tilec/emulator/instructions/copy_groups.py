"""Issued asynchronous copies of a wave, in groups that each lane commits.

In: a machine. Out: a queue that is cleared with every wave and notified of lanes that exit. The instruction family decides
when a copy completes and what it does then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.instructions.operands import active
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.machine import Machine
from tilec.emulator.machine.registry import Decoder, Step
from tilec.emulator.ordering.in_flight import NOTHING

T = TypeVar("T")


class CopyGroups(ABC, Generic[T]):
    """Unfinished copies of a wave; `committed`: the number of groups that each lane has committed."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.waiting: list[T] = []
        self.committed: NDArray[np.int64] = NOTHING
        machine.on_wave.append(self.clear)
        machine.on_exit.append(self.leave)

    def clear(self) -> None:
        """Starts a new wave."""
        self.waiting.clear()
        self.committed = np.zeros(self.machine.lane_count, np.int64)

    @abstractmethod
    def leave(self, frame: Frame) -> None:
        """Handles lanes that exit."""

    def commit(self, d: Decoder) -> Step:
        """The step that commits a group of each lane."""
        d.finish(0)

        def commit(frame: Frame) -> None:
            self.committed[active(frame)] += 1

        return commit
