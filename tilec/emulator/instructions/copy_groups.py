"""Asynchronous copies between their start and their end: what a wave has under way, in groups that each lane commits.

In: a machine. Out: a queue that forgets itself with every wave and is told of lanes that exit; when a copy is done, and what it
does then, is the instruction family's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.frame import Frame
from tilec.emulator.instructions.operands import active
from tilec.emulator.machine import Machine
from tilec.emulator.registry import Decoder, Step

NOTHING = np.zeros(0, np.int64)
T = TypeVar("T")


class CopyGroups(ABC, Generic[T]):
    """Unfinished copies of a wave; `committed` groups of each lane."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.waiting: list[T] = []
        self.committed: NDArray[np.int64] = NOTHING
        machine.on_wave.append(self.clear)
        machine.on_exit.append(self.leave)

    def clear(self) -> None:
        """A new wave."""
        self.waiting.clear()
        self.committed = np.zeros(self.machine.lane_count, np.int64)

    @abstractmethod
    def leave(self, frame: Frame) -> None:
        """Lanes exit."""

    def commit(self, d: Decoder) -> Step:
        """The step that ends a group of each lane."""
        d.finish(0)

        def commit(frame: Frame) -> None:
            self.committed[active(frame)] += 1

        return commit
