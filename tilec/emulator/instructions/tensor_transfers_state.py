"""The unfinished `tcgen05.ld` and `.st` of each warp, and the registers that the loads write.

In: loads and stores when they are issued, and waits. Out: completion, and a note for each instruction that uses a register of a
load before the wait: the PTX ISA does not define its value, and chips order only the true dependence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tilec.emulator.machine.faults import Recorder
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.sources import Step
from tilec.emulator.machine.subsystem import Subsystem
from tilec.emulator.machine.wave import Wave
from tilec.emulator.ordering.clocks import Clocks
from tilec.emulator.ordering.tensor_order import Operation
from tilec.emulator.ptx.syntax import Address, Function, Instruction, Negated, Operand, Pair, Register, Vector


class TensorTransfers(Subsystem):
    """`open`: unfinished operations by warp; `written`: registers of unfinished loads by warp, with the load."""

    def __init__(self, function: Function, wave: Wave, clocks: Clocks, faults: Recorder) -> None:
        self.wave, self.clocks, self.faults = wave, clocks, faults
        self.open: dict[int, list[Operation]] = {}
        self.written: dict[int, list[tuple[frozenset[int], Instruction]]] = {}
        self.loaded = frozenset(
            index
            for instruction in function.instructions
            if instruction.opcode == "tcgen05" and instruction.modifiers[:1] == ("ld",)
            for index in _registers(instruction.operands[:1])
        )

    def clear(self) -> None:
        self.open.clear()
        self.written.clear()

    def wait(self, frame: Frame, name: str) -> None:
        """The loads, or stores, of these warps are complete."""
        for warp in np.unique(frame.warp).tolist():
            left: list[Operation] = []
            for operation in self.open.pop(warp, ()):
                if operation.name != name:
                    left.append(operation)
                    continue
                operation.observe(operation.lanes, self.clocks.now)
            if left:
                self.open[warp] = left
            if name == "ld":
                self.written.pop(warp, None)
        self.clocks.now += 1

    def watched(self, instruction: Instruction, step: Step) -> Step:
        """The step with a check of the registers it mentions, if a load writes one of them."""
        used = self.loaded.intersection(_registers((*instruction.operands, *_guard(instruction))))
        if not used:
            return step

        def checked(frame: Frame) -> Any:
            if self.written:
                self._check(frame, used, instruction)
            return step(frame)

        return checked

    def _check(self, frame: Frame, used: frozenset[int], instruction: Instruction) -> None:
        for warp in np.unique(frame.warp).tolist():
            for registers, load in self.written.get(warp, ()):
                if registers & used:
                    text = f"uses a register of the tcgen05.ld in line {load.line} before tcgen05.wait::ld"
                    lane = int(frame.lanes[np.flatnonzero(frame.warp == warp)[0]])
                    self.faults.add("tensor-wait", text, load, lane, distinct=f"line {load.line}")
                    return


def _guard(instruction: Instruction) -> tuple[Operand, ...]:
    return () if instruction.guard is None else (instruction.guard,)


def _registers(operands: tuple[Operand, ...]) -> Iterator[int]:
    """Every register that these operands mention."""
    for operand in operands:
        if isinstance(operand, Register):
            yield operand.index
        elif isinstance(operand, Negated):
            yield operand.register.index
        elif isinstance(operand, Vector):
            yield from _registers(operand.items)
        elif isinstance(operand, Pair):
            yield from _registers((operand.first, operand.second))
        elif isinstance(operand, Address):
            yield from _registers((operand.base, *operand.extra))
