"""Accesses before a thread's grid dependency wait, while preceding launches may still run (PTX ISA, `griddepcontrol`).

In: an access. Out: a fault if it reads global memory that those launches may still write, or writes any global memory, which
they may still read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.machine.faults import Recorder
from tilec.emulator.machine.memory import Allocation
from tilec.emulator.machine.wave import Wave
from tilec.emulator.ptx.syntax import Instruction

BEFORE_WAIT: Final = "global memory before griddepcontrol.wait, while the launch before may still run"


class PriorLaunches:
    """`before_wait` [lanes]: which lanes have not executed their grid dependency wait; None if no launch before may still
    run, or all have."""

    def __init__(self, wave: Wave, faults: Recorder, overlaps: bool) -> None:
        self.wave, self.faults, self.overlaps = wave, faults, overlaps
        self.before_wait: NDArray[np.bool_] | None = None

    def clear(self) -> None:
        """Starts a new wave."""
        self.before_wait = np.ones(self.wave.lane_count, np.bool_) if self.overlaps else None

    def wait(self, lanes: NDArray[np.int64]) -> None:
        """The grid dependency wait of these lanes."""
        if self.before_wait is not None:
            self.before_wait[lanes] = False
            if not self.before_wait.any():
                self.before_wait = None

    def check(
        self,
        lanes: NDArray[np.int64],
        index: NDArray[np.int64],
        allocations: Iterable[Allocation | None],
        instruction: Instruction,
        *,
        write: bool,
    ) -> None:
        """Checks accesses of `lanes`, each at its `index` in memory; `allocations` are the allocations accessed."""
        if self.before_wait is None:
            return
        early = self.before_wait[lanes] & any(
            allocation is not None and _may_change(allocation, write) for allocation in allocations
        )
        if early.any():
            at = int(np.flatnonzero(early)[0])
            count = int(early.sum())
            self.faults.add("dependency", BEFORE_WAIT, instruction, int(lanes[at]), index=int(index[at]), count=count)


def _may_change(allocation: Allocation, write: bool) -> bool:
    return allocation.space == "global" and (write or not allocation.resident)
