"""Tensor memory of the blocks of a wave: words, poison, and the allocator of columns.

PTX ISA, "Tensor memory" and "tcgen05.alloc". Each block has 128 lanes of 512 columns of 32 bits; the memory that chips share
between the blocks of an SM is not modelled, so an allocation never waits for another block. Rows count through the blocks of
the wave, 128 for each, so that the two blocks of a pair are adjacent. Contents are uninitialised when columns are allocated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import UNINITIALISED
from tilec.emulator.machine.faults import Recorder
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.launch_state import LaunchState
from tilec.emulator.machine.subsystem import Subsystem
from tilec.emulator.machine.wave import Wave
from tilec.emulator.matrices.tensor_layouts import COLUMNS, LANES, Rect
from tilec.emulator.ordering.clocks import Clocks
from tilec.emulator.ordering.tensor_fences import TensorFences
from tilec.emulator.ordering.tensor_order import TensorOrder
from tilec.emulator.ptx.syntax import Instruction

Index = NDArray[np.int64]
UNIT: Final = 32
"""Columns of the smallest allocation."""


@dataclass(slots=True)
class Allocated:
    """Columns `first` to `first + count` of a block, by an alloc of the warp at lane `lane`; `pair`: of both blocks of a
    pair."""

    first: int
    count: int
    lane: int
    pair: bool
    instruction: Instruction


class TensorMemory(Subsystem):
    """`words` and `poison` [128 * blocks, 512]; `allocated`, and for each block the instruction that gave up the right to
    allocate (`relinquished`) and the smallest allocation; `waiting`: unfinished requests by instruction and first block of the
    pair. Without tcgen05 in the function all are empty."""

    def __init__(self, launch: LaunchState, wave: Wave, clocks: Clocks, random: np.random.Generator, faults: Recorder) -> None:
        self.launch, self.wave, self.random, self.faults = launch, wave, random, faults
        self.used = any(instruction.opcode == "tcgen05" for instruction in launch.function.instructions)
        self.fences = TensorFences(clocks, faults)
        self.order = TensorOrder(wave, clocks, self.fences, faults)
        self.words: NDArray[np.uint32] = np.zeros((0, COLUMNS), np.uint32)
        self.poison: NDArray[np.uint8] = np.zeros((0, COLUMNS), np.uint8)
        self.allocated: list[list[Allocated]] = []
        self.relinquished: dict[int, Instruction] = {}
        self.smallest: dict[int, int] = {}
        self.waiting: dict[tuple[int, int], list[Any]] = {}

    def clear(self) -> None:
        if not self.used:
            return
        rows = LANES * self.wave.block_count
        self.words = np.zeros((rows, COLUMNS), np.uint32)
        self.poison = np.full((rows, COLUMNS), UNINITIALISED, np.uint8)
        self.allocated = [list[Allocated]() for _ in range(self.wave.block_count)]
        self.relinquished.clear()
        self.smallest.clear()
        self.waiting.clear()
        self.fences.clear()
        self.order.clear()

    # --- the allocator
    def free_columns(self, blocks: Iterable[int], count: int) -> int | None:
        """A first column at which `count` columns are free in all these blocks: the lowest, or under a seed any; None if there
        is none."""
        free = np.ones(COLUMNS, np.bool_)
        for block in blocks:
            for part in self.allocated[block]:
                free[part.first : part.first + part.count] = False
        starts = [at for at in range(0, COLUMNS - count + 1, UNIT) if free[at : at + count].all()]
        if not starts:
            return None
        return starts[0] if self.launch.seed == 0 else int(self.random.choice(starts))

    def allocate(self, block: int, allocated: Allocated) -> None:
        """Gives columns to a block; their contents are uninitialised."""
        self.allocated[block].append(allocated)
        end = allocated.first + allocated.count
        self.poison[LANES * block : LANES * (block + 1), allocated.first : end] = UNINITIALISED

    def free(self, block: int, first: int, count: int) -> Allocated | None:
        """Takes columns back; None if no allocation begins there with that size."""
        for part in self.allocated[block]:
            if (part.first, part.count) == (first, count):
                self.allocated[block].remove(part)
                return part
        return None

    # --- cells
    def owns(self, rects: Iterable[Rect], instruction: Instruction, lane: int) -> bool:
        """Whether all rectangles lie in allocated columns of their blocks; a fault if not."""
        for top, bottom, left, right in rects:
            for block in range(top // LANES, (bottom - 1) // LANES + 1):
                columns = np.zeros(max(right, COLUMNS), np.bool_)
                for part in self.allocated[block] if block < len(self.allocated) else ():
                    columns[part.first : part.first + part.count] = True
                if not columns[left:right].all():
                    column = left + int(np.flatnonzero(~columns[left:right])[0])
                    text = f"tensor memory columns {left} to {right - 1}, of which {column} is not allocated"
                    self.faults.add("bounds", text, instruction, lane, distinct="tensor memory")
                    return False
        return True

    def read(self, rows: Any, columns: Any) -> tuple[NDArray[np.uint32], NDArray[np.uint8] | None]:
        """Words of cells and their poison, None if there is none."""
        poison = self.poison[rows, columns]
        return self.words[rows, columns], poison if poison.any() else None

    def write(self, rows: Any, columns: Any, words: Any, poison: NDArray[np.uint8] | None) -> None:
        """Writes cells."""
        self.words[rows, columns] = words
        self.poison[rows, columns] = 0 if poison is None else poison

    def leave(self, frame: Frame) -> None:
        """A block must not end with columns that are allocated."""
        if not self.used:
            return
        for block in self.wave.ending_blocks(frame.lanes):
            for part in self.allocated[block]:
                text = f"a block ends without tcgen05.dealloc of {part.count} columns of tensor memory"
                self.faults.add("tensor-memory", text, part.instruction, part.lane, distinct=text)
            self.allocated[block].clear()
            self.order.forget(block)
