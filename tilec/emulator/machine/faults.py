"""Records faults: one entry per kind and instruction, with its first lane and its count."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import IN_FLIGHT, NOTES, POISON, UNDEFINED, UNINITIALISED, Fault, Poison
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.launch_state import LaunchState
from tilec.emulator.machine.memory import GLOBAL_BASE, Memory
from tilec.emulator.machine.wave import Wave
from tilec.emulator.ptx.syntax import Instruction


class Recorder:
    """The faults of a launch, and its notes (kinds of `NOTES`), each in order of first appearance."""

    def __init__(self, launch: LaunchState, wave: Wave, memory: Memory) -> None:
        self.launch, self.wave, self.memory = launch, wave, memory
        self.found: dict[tuple[str, int, str], Fault] = {}
        self.notes: dict[tuple[str, int, str], Fault] = {}

    def add(
        self,
        kind: str,
        message: str,
        instruction: Instruction | None,
        lane: int | None = None,
        *,
        index: int | None = None,
        address: int | None = None,
        count: int = 1,
        distinct: str = "",
    ) -> Fault | None:
        """Records a fault of `lane` (of the wave) at an instruction. `index` is a position in memory, `address` a raw address
        instead. Faults of one kind at one instruction are merged unless `distinct` differs. Returns the fault if it is new."""
        line = instruction.line if instruction else 0
        table = self.notes if kind in NOTES else self.found
        known = table.get((kind, line, distinct))
        if known is not None:
            known.count += count
            return None
        if len(table) >= self.launch.limits.faults:
            return None
        fault = Fault(kind, message, line, instruction.text if instruction else "", seed=self.launch.seed, count=count)
        if instruction is not None:
            fault.tir_line = instruction.location[1]
        if lane is not None:
            fault.block = tuple(int(x) for x in self.wave.block_ids[self.wave.block[lane]])  # pyright: ignore
            fault.thread = int(self.wave.thread[lane])
        if index is not None:
            self._locate(fault, index)
        if address is not None:
            fault.address = address
        table[kind, line, distinct] = fault
        return fault

    def _locate(self, fault: Fault, index: int) -> None:
        allocation = self.memory.allocation_at(index)
        fault.address = GLOBAL_BASE + index
        if allocation is None:
            return
        fault.tensor = allocation.name
        if allocation.space == "shared":
            fault.address = index - allocation.start + 1024
        if allocation.start <= index < allocation.end:
            offset = index - allocation.start
            fault.element = offset // allocation.item, offset % allocation.item

    def lanes(self, kind: str, message: str, instruction: Instruction, frame: Frame, bad: NDArray[np.bool_]) -> None:
        """Records a fault of the frame's lanes at the true entries of `bad`."""
        where = np.flatnonzero(bad)
        if len(where):
            self.add(kind, message, instruction, int(frame.lanes[where[0]]), count=len(where))

    def uniform(self, instruction: Instruction, frame: Frame, choice: NDArray[np.integer | np.bool_]) -> None:
        """Records a branch marked `.uni` whose threads of one warp do not make the same `choice` [lanes of the frame] (PTX
        ISA, "Control flow instructions: bra": all active threads that execute it have equal guards and targets)."""
        warp = frame.warp
        _, first, which = np.unique(warp, return_index=True, return_inverse=True)
        bad = choice != choice[first][which]
        self.lanes("divergent", "a branch marked .uni that only a part of a warp takes", instruction, frame, bad)

    def poison(self, subject: str, instruction: Instruction, frame: Frame, poison: Poison, *, masked: bool = True) -> None:
        """Records that poison decides something: `poison` [lanes of the frame], under the frame's mask."""
        where = np.flatnonzero(poison if frame.mask is None or not masked else np.where(frame.mask, poison, 0))
        if len(where):
            bits = int(poison[where[0]])
            self.add(kind_of(bits), f"{subject} is not defined", instruction, int(frame.lanes[where[0]]), count=len(where))


def kind_of(bits: int) -> str:
    """The kind of fault for poison bits."""
    if bits & IN_FLIGHT:
        return "async"
    if bits & UNINITIALISED:
        return "uninitialised"
    return "undefined" if bits & UNDEFINED and not bits & POISON else "poison"
