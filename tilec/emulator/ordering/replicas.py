"""Stores that replicate by design: several threads have the same value and each writes it to the same location.

In: a program, and line numbers of such stores from the caller. PTX of this compiler marks them itself by the column of their
`.loc` in the file that represents a tile IR (`tilec.ir.text.lines`): lowering sets it on a store whose layout assigns an
element to several threads. For other PTX the caller gives line numbers. Out: whether an unordered write of the same value
conflicts only with the same operation, which may be several instructions of one location. Any other race of equal values is a
fault, because values that are equal in one launch may differ in the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.machine.access import Access
from tilec.emulator.machine.launch_state import LaunchState
from tilec.emulator.machine.memory import Memory
from tilec.emulator.ordering.races import Shadow
from tilec.emulator.ptx.syntax import Instruction
from tilec.ir.text.lines import REPLICATED, TEXT_NAME

STORES = ("st", "stmatrix")


class Replicas:
    """`_operations`: by its line, the number of each replicating instruction's operation; `_last`: the operation that last
    wrote a granule, 0 for any other."""

    def __init__(self, launch: LaunchState, shadow: Shadow) -> None:
        self.shadow = shadow
        self._operations: dict[int, int] = {}
        self._last: NDArray[np.int32] = np.zeros(0, np.int32)
        for instruction in launch.function.instructions:
            file, row, column = instruction.location
            if instruction.opcode not in STORES:
                continue
            if instruction.line in launch.replicating:
                self._operations[instruction.line] = -instruction.line
            elif column == REPLICATED and launch.module.files.get(file) == TEXT_NAME:
                self._operations[instruction.line] = row

    def record_write(self, access: Access, instruction: Instruction, earlier: NDArray[np.bool_] | None) -> bool:
        """Records a write. Returns whether it replicates and every `earlier` write [m, granules] that it conflicts with
        belongs to the same operation."""
        if not self._operations:
            return False
        shadow = self.shadow
        if len(self._last) < len(shadow.writes):
            self._last = np.concatenate([self._last, np.zeros(len(shadow.writes) - len(self._last), np.int32)])
        granules = shadow.granules(access.index, access.width)
        operation = self._operations.get(instruction.line, 0)
        same_operation = operation != 0 and (earlier is None or bool((self._last[granules][earlier] == operation).all()))
        self._last[granules] = operation
        return same_operation


def same_values(memory: Memory, access: Access, new: NDArray[Any], earlier: NDArray[np.bool_] | None) -> bool:
    """Whether lanes that write to the same location write the same bytes, `new` (one item per lane), and lanes that conflict
    with an `earlier` write the bytes already there."""
    if access.width not in memory.views:
        return False
    slots = access.index // access.width
    order = np.argsort(slots, kind="stable")
    sorted_slots, sorted_new = slots[order], new[order]
    repeated = np.flatnonzero(sorted_slots[1:] == sorted_slots[:-1])
    if sorted_new[repeated].tobytes() != sorted_new[repeated + 1].tobytes():
        return False
    rows = np.zeros(0, np.int64) if earlier is None else np.flatnonzero(earlier.any(axis=1))
    return memory.views[access.width][slots[rows]].tobytes() == new[rows].tobytes()
