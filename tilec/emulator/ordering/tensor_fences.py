"""`tcgen05.fence`: notes where threads order tcgen05 operations by a signal alone.

Source: PTX ISA, "tcgen05.fence" and "Memory consistency model" of tcgen05. The thread that signals must execute
`before_thread_sync` after its operation (a commit implies it), the thread that waits `after_thread_sync` before its own. The
fences emit no machine code, and CUTLASS and Triton leave them out, so that their absence is a note and not a fault.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.machine.faults import Recorder
from tilec.emulator.ordering.clocks import Clocks
from tilec.emulator.ptx.syntax import Instruction

Index = NDArray[np.int64]
BEFORE = "without tcgen05.fence::before_thread_sync in the thread that signals"
AFTER = "without tcgen05.fence::after_thread_sync after the wait"


class TensorFences:
    """`before`: the times of each lane's fences before a signal; `after`: what each lane knew at its last fence after a
    wait."""

    def __init__(self, clocks: Clocks, faults: Recorder) -> None:
        self.clocks, self.faults = clocks, faults
        self.before: dict[int, list[int]] = {}
        self.after: dict[int, Index] = {}

    def clear(self) -> None:
        """A new wave starts."""
        self.before.clear()
        self.after.clear()

    def fence(self, lanes: Index, is_after: bool) -> None:
        """A fence by these lanes."""
        clocks = self.clocks
        if is_after:
            for lane, row in zip(lanes.tolist(), clocks.rows(lanes), strict=True):
                row[lane] = clocks.now
                self.after[lane] = row
        else:
            for lane in lanes.tolist():
                self.before.setdefault(lane, []).append(clocks.now)
        clocks.now += 1

    def check(self, lanes: Index, others: Index, times: Index, instruction: Instruction, *, by_commit: bool = False) -> None:
        """Notes missing fences between what `others` did at their times and an operation of `lanes` now."""
        if not by_commit and not all(
            self._fenced_before(int(lane), int(other), int(time))
            for lane in lanes[:1]
            for other, time in zip(others, times, strict=True)
        ):
            self.faults.add("tensor-fence", f"an operation {BEFORE}", instruction, int(lanes[0]), distinct=BEFORE)
        for lane in lanes.tolist():
            row = self.after.get(lane)
            if row is None or (row[others] < times).any():
                self.faults.add("tensor-fence", f"an operation {AFTER}", instruction, lane, distinct=AFTER)
                return

    def _fenced_before(self, lane: int, other: int, time: int) -> bool:
        if lane == other:
            return True
        fences = self.before.get(other, [])
        at = int(np.searchsorted(fences, time))
        if at == len(fences):
            return False
        return bool(self.clocks.knows(np.array([lane]), np.array([other + self.clocks.first_lane]), np.array([fences[at]]))[0])
