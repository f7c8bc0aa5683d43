"""The state of `wgmma`: unfinished products, their groups, and the register values at the last fence.

Products are added as `Product`. A wait removes them, ends their reads of shared memory and clears the poison of their
accumulators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import IN_FLIGHT
from tilec.emulator.machine.faults import Recorder
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.halves import whole
from tilec.emulator.machine.subsystem import Subsystem
from tilec.emulator.machine.wave import WARP, Wave
from tilec.emulator.ordering.in_flight import Operation
from tilec.emulator.ordering.ordering import Ordering
from tilec.emulator.ordering.races import Shadow
from tilec.emulator.ptx.syntax import Function, Instruction, Register, Vector

Index = NDArray[np.int64]
Words = NDArray[np.uint32]
GROUP: Final = 128


@dataclass(slots=True)
class Product:
    """An unfinished product of the warpgroup that begins at lane `first`: its group, the registers it writes and reads with
    their values, its reads of memory (`operation` of `in_flight`, `places`: granules of the race shadow)."""

    first: int
    group: int
    results: dict[int, Words]
    inputs: dict[int, Words]
    operation: Operation
    shadow_granules: Index
    instruction: Instruction


class Warpgroups(Subsystem):
    """Unfinished products of a wave, the number of committed groups of each lane, and the register values at the last
    fence."""

    def __init__(self, function: Function, wave: Wave, ordering: Ordering, faults: Recorder) -> None:
        self.wave, self.ordering, self.faults = wave, ordering, faults
        self.unfinished: list[Product] = []
        self.committed: Index = np.zeros(0, np.int64)
        self.fenced: dict[int, Words] = {}
        self.has_fenced: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.registers = operand_registers(function)

    def clear(self) -> None:
        self.unfinished.clear()
        self.committed = np.zeros(self.wave.lane_count, np.int64)
        self.has_fenced = np.zeros(self.wave.lane_count, np.bool_)
        self.fenced.clear()

    def fence(self, frame: Frame) -> None:
        """`wgmma.fence`: products may use the current register values."""
        self.has_fenced[frame.lanes] = True
        for index in self.registers:
            if index not in self.fenced:
                self.fenced[index] = np.zeros(self.wave.lane_count, np.uint32)
            self.fenced[index][frame.lanes] = frame.get(index)

    def wait(self, frame: Frame, allowed: int) -> None:
        """Completes all but the last `allowed` groups of the frame's lanes."""
        here = np.zeros(self.wave.lane_count, np.bool_)
        here[frame.lanes] = True
        left: list[Product] = []
        last: dict[tuple[int, int], Product] = {}
        for product in self.unfinished:
            if not here[product.first] or product.group >= self.committed[product.first] - allowed:
                left.append(product)
                for index in product.results:
                    last.pop((product.first, index), None)
                continue
            self.ordering.in_flight.end(product.operation)
            stamp_reads(self.ordering.shadow, product.shadow_granules, product.first)
            self._check_inputs(frame, product)
            last |= {(product.first, index): product for index in product.results}
        self._settle(frame, last)
        self.unfinished = left

    def _settle(self, frame: Frame, last: dict[tuple[int, int], Product]) -> None:
        """Clears the in-flight poison of accumulators whose last product is complete."""
        by_register: dict[int, list[Product]] = {}
        for (_, index), product in last.items():
            by_register.setdefault(index, []).append(product)
        for index, found in by_register.items():
            value, poison = frame.get(index), whole(frame.get_poison(index))
            fresh = np.zeros(frame.n, np.uint8) if poison is None else poison.copy()
            for product in found:
                at = int(np.searchsorted(frame.lanes, product.first))
                span = slice(at, at + GROUP)
                if not (fresh[span] & IN_FLIGHT).all() or (value[span] != product.results[index]).any():
                    self.faults.add(
                        "async", "a register was changed while a wgmma writes it", product.instruction, product.first
                    )
                fresh[span] &= 255 ^ IN_FLIGHT
                if index in self.fenced:
                    self.fenced[index][frame.lanes[span]] = value[span]
            frame.write(index, value, fresh if fresh.any() else None)

    def _check_inputs(self, frame: Frame, product: Product) -> None:
        at = int(np.searchsorted(frame.lanes, product.first))
        for index, before in product.inputs.items():
            if (frame.get(index)[at : at + GROUP] != before).any():
                self.faults.add("async", "a register was changed while a wgmma reads it", product.instruction, product.first)

    def leave(self, frame: Frame) -> None:
        """Drops the unfinished products of lanes that exit."""
        members = set(frame.lanes.tolist())
        for product in self.unfinished:
            if product.first in members:
                self.ordering.in_flight.end(product.operation)
                stamp_reads(self.ordering.shadow, product.shadow_granules, product.first)
        self.unfinished = [product for product in self.unfinished if product.first not in members]

    def last_writer(self, first: int, index: int) -> Product | None:
        """The last unfinished product that writes a register of this warpgroup."""
        for product in reversed(self.unfinished):
            if product.first == first and index in product.results:
                return product
        return None


def operand_registers(function: Function) -> tuple[int, ...]:
    """Every register that a `wgmma` of the function reads or writes."""
    found: set[int] = set()
    for instruction in function.instructions:
        if instruction.opcode == "wgmma":
            for operand in instruction.operands:
                if isinstance(operand, Vector):
                    found |= {item.index for item in operand.items if isinstance(item, Register)}
    return tuple(sorted(found))


def stamp_reads(shadow: Shadow, granules: Index, first: int) -> None:
    """Stamps the reads of these granules of the race shadow, by a product of the warpgroup at lane `first`, as of now: by a
    lane of each of its four warps, because ordering after some of them must not suffice."""
    shadow.read_async(granules, range(first, first + GROUP, WARP))
