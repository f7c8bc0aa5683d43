"""A frame: the lanes that execute one instruction together, as dense arrays.

A lane is one thread of the launch. Registers are raw unsigned arrays (bool for predicates), one entry per lane, each with a
poison array, or None if no lane is poisoned. A frame of all lanes uses the wave's arrays directly; a smaller one gathers
the registers it reads and writes the changed ones back in `flush`. Arrays in a frame are never modified in place.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import POISON, Lanes, Poison
from tilec.emulator.machine.halves import whole
from tilec.emulator.machine.registers import Registers
from tilec.emulator.machine.wave import READY, Wave

Index = NDArray[np.int64]


class Signal:
    """A return value of control steps besides None (next instruction) and an int (index of the next instruction). RESCHEDULE:
    the step has parked the frame's lanes."""


RESCHEDULE: Final = Signal()


def union(first: Poison | None, second: Poison | None) -> Poison | None:
    """Poison of a value that depends on both."""
    if first is None:
        return second
    return first if second is None else first | second


class Frame:
    """`lanes` are ascending indices into the wave's lanes; `mask` selects the lanes whose guard is true (None: all), and
    `mask_poison` is the guard's poison. Steps of guarded instructions see a mask; control instructions never do."""

    __slots__ = (
        "dirty", "lanes", "mask", "mask_poison", "n", "pc", "poison", "registers", "values", "wave", "whole", "whole_warps",
    )  # fmt: skip

    def __init__(self, wave: Wave, registers: Registers, lanes: Index, pc: int) -> None:
        self.wave, self.registers, self.lanes, self.n, self.pc = wave, registers, lanes, len(lanes), pc
        self.whole = len(lanes) == wave.lane_count
        self.whole_warps = self.whole or wave.whole_warps(lanes)
        self.mask: NDArray[np.bool_] | None = None
        self.mask_poison: Poison | None = None
        self.dirty: set[int] = set()
        self.values: list[Lanes | None]
        self.poison: list[Poison | None]
        if self.whole:
            self.values, self.poison = registers.values, registers.poison
            registers.owned.clear()
        else:
            self.values, self.poison = [None] * registers.count, [None] * registers.count

    def get(self, index: int) -> Lanes:
        """The raw value of a register in every lane; `poison[index]` is valid afterwards."""
        value = self.values[index]
        return self.load(index) if value is None else value

    def load(self, index: int) -> Lanes:
        stored = None if self.whole else self.registers.values[index]
        if stored is None:
            value = np.zeros(self.n, self.registers.dtypes[index])
            self.poison[index] = np.full(self.n, POISON, np.uint8)
        else:
            value = stored[self.lanes]
            poison = self.registers.poison[index]
            if poison is not None:
                poison = poison[self.lanes]
                self.poison[index] = poison if poison.any() else None
        self.values[index] = value
        return value

    def get_poison(self, index: int) -> Poison | None:
        """The poison of a register, with its half flags."""
        if self.values[index] is None:
            self.load(index)
        return self.poison[index]

    def write(self, index: int, value: Lanes, poison: Poison | None) -> None:
        """Writes a register's raw value; lanes outside the mask keep their old one. A poisoned guard poisons the result."""
        if self.mask is not None:
            old = self.get(index)
            old_poison = self.poison[index]
            value = np.where(self.mask, value, old)
            if poison is not None or old_poison is not None:
                poison = np.where(self.mask, 0 if poison is None else poison, 0 if old_poison is None else old_poison)
                poison = poison.astype(np.uint8)
            if self.mask_poison is not None:
                poison = union(whole(poison), self.mask_poison)
        self.values[index] = value
        self.poison[index] = poison
        if not self.whole:
            self.dirty.add(index)

    def flush(self) -> None:
        """Writes the changed registers back to the wave. The frame must not be used afterwards if other lanes ran in
        between."""
        if self.whole:
            return
        registers, lanes, count = self.registers, self.lanes, self.wave.lane_count
        for index in self.dirty:
            value, poison = self.values[index], self.poison[index]
            base, base_poison = registers.values[index], registers.poison[index]
            if base is None:
                base = np.zeros(count, registers.dtypes[index])
                base_poison = np.full(count, POISON, np.uint8)
            elif index not in registers.owned:
                base = base.copy()
                base_poison = None if base_poison is None else base_poison.copy()
            registers.owned.add(index)
            base[lanes] = value
            if poison is not None and base_poison is None:
                base_poison = np.zeros(count, np.uint8)
            if base_poison is not None:
                base_poison[lanes] = 0 if poison is None else poison
            registers.values[index], registers.poison[index] = base, base_poison
        self.dirty.clear()

    def active(self) -> NDArray[np.int64]:
        """Positions in the frame (not lanes) whose guard is true."""
        return np.arange(self.n) if self.mask is None else np.flatnonzero(self.mask)

    def park(self, pc: int | Index, status: int = READY) -> Signal:
        """Suspends the lanes at `pc` (one, or one per lane) with that status."""
        self.flush()
        self.wave.pc[self.lanes] = pc
        self.wave.status[self.lanes] = status
        return RESCHEDULE

    def branch(self, taken: NDArray[np.bool_], target: int, fall: int) -> Signal:
        """Sends the lanes where `taken` is true to `target`, the others to `fall`."""
        return self.park(np.where(taken, target, fall))

    def active_lanes(self) -> Index:
        """The lanes (of the wave) whose guard is true."""
        return self.lanes if self.mask is None else self.lanes[self.mask]

    # --- per-lane arrays of the wave for the frame's lanes
    def _of_lanes(self, array: Index) -> Index:
        return array if self.whole else array[self.lanes]

    @property
    def block(self) -> Index:
        return self._of_lanes(self.wave.block)

    @property
    def warp(self) -> Index:
        return self._of_lanes(self.wave.warp)

    @property
    def thread(self) -> Index:
        return self._of_lanes(self.wave.thread)

    @property
    def lane_in_warp(self) -> Index:
        return self._of_lanes(self.wave.lane_in_warp)
