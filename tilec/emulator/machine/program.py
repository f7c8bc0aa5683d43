"""The instructions of a function as steps with guards applied, and the ends of straight-line runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilec.emulator.machine import registry
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.machine import Machine
from tilec.emulator.machine.sources import Step
from tilec.emulator.ptx.syntax import Instruction


class Program:
    """`steps[i]` executes instruction i; `ends[i]` is the first control instruction at or after i, or else the last
    instruction; `straight[i]`: i is not a control instruction; `hits` are differences of lane counts, for coverage."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.instructions = machine.launch.function.instructions
        self.steps: list[Step] = []
        self.ends: list[int] = []
        self.straight: list[bool] = []
        self.hits = np.zeros(len(self.instructions) + 2, np.int64)

    def decode(self) -> None:
        """Decodes all instructions; UnsupportedPtx at the first unsupported one."""
        machine = self.machine
        for index, instruction in enumerate(self.instructions):
            step, is_control = registry.decode(instruction, index, machine)
            step = machine.tensor_transfers.watched(instruction, step)
            if instruction.guard is not None and not (is_control and instruction.opcode in ("bra", "brx")):
                guard = _guard_control if is_control else _guard_values
                step = guard(machine, instruction, index, step)
            self.steps.append(step)
            self.straight.append(not is_control)
        count = len(self.instructions)
        self.ends = [count - 1] * count
        for index in range(count - 1, -1, -1):
            if not self.straight[index]:
                self.ends[index] = index
            elif index + 1 < count:
                self.ends[index] = self.ends[index + 1]

    def lanes_executed(self) -> Any:
        """The number of lanes that executed each instruction."""
        return np.cumsum(self.hits)[: len(self.instructions)]


def _guard_values(machine: Machine, instruction: Instruction, index: int, step: Step) -> Step:
    assert instruction.guard is not None
    register, negated = instruction.guard.index, instruction.guard_negated

    def guarded(frame: Frame) -> None:
        mask = frame.get(register)
        poison = frame.poison[register]
        if negated:
            mask = ~mask
        if poison is None:
            if mask.all():
                step(frame)
                return
            if not mask.any():
                return
        frame.mask, frame.mask_poison = mask, poison
        step(frame)
        frame.mask = frame.mask_poison = None

    return guarded


def _guard_control(machine: Machine, instruction: Instruction, index: int, step: Step) -> Step:
    assert instruction.guard is not None
    register, negated = instruction.guard.index, instruction.guard_negated
    uniform = instruction.opcode == "ret" and "uni" in instruction.modifiers

    def guarded(frame: Frame) -> Any:
        mask = frame.get(register)
        poison = frame.poison[register]
        if poison is not None:
            machine.faults.poison("the guard of a control instruction", instruction, frame, poison)
        if negated:
            mask = ~mask
        if mask.all():
            return step(frame)
        if not mask.any():
            return None
        if uniform:
            machine.faults.uniform(instruction, frame, mask)
        return frame.branch(mask, index, index + 1)

    return guarded
