"""Executes the integer MLIR text of the tensor-core emitters for one thread, and records its memory instructions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, Type, i32

_BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "lshr": lambda a, b: a >> b,
    "udiv": lambda a, b: a // b,
    "urem": lambda a, b: a % b,
}
_COMPARE = {
    "slt": lambda a, b: a < b,
    "sge": lambda a, b: a >= b,
    "sgt": lambda a, b: a > b,
    "ult": lambda a, b: a % 2**32 < b % 2**32,
}


class Thread(Builder):
    """Executes each line as it is emitted. `copies` are (target, source, bytes), `matrices` (name, address)."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, int] = {}
        self.copies: list[tuple[int, int, int]] = []
        self.matrices: list[tuple[str, int]] = []
        self.guards: list[bool] = []

    def bind(self, value: int, type: Type = i32) -> SsaValue:
        name = f"%{len(self.values)}"
        self.values[name] = value
        return SsaValue(name, type)

    def _value(self, text: str, type: Type) -> SsaValue:
        return self.bind(self._compute(text), type)

    def _compute(self, text: str) -> int:
        name, rest = text.split(" ", 1) if "(" not in text.split(" ")[0] else text.split("(", 1)
        operands = [self.values[n] for n in re.findall(r"%\d+", rest)]
        opcode = name.removeprefix("llvm.").removesuffix("")
        if opcode.startswith("mlir.constant"):
            return int(re.search(r"(-?\d+) :", rest)[1])
        if opcode in _BINARY:
            return _BINARY[opcode](operands[0], operands[1])
        if opcode == "icmp":
            return int(_COMPARE[re.search(r'"(\w+)"', rest)[1]](operands[0], operands[1]))
        if opcode == "select":
            return operands[1] if operands[0] else operands[2]
        if opcode in ("zext", "sext", "trunc", "ptrtoint"):
            return operands[0]
        if opcode == "getelementptr":
            immediate = re.search(r"\[(-?\d+)\]", rest)
            return operands[0] + (int(immediate[1]) if immediate else operands[1])
        if opcode == "call_intrinsic":
            instruction = re.search(r'"llvm\.nvvm\.([\w.]+)"', rest)[1]
            self.matrices.append((instruction, operands[0]))
            return 0
        if opcode == "extractvalue":
            return 0
        raise AssertionError(text)

    def _effect(self, text: str) -> None:
        if text.startswith("scf.if"):
            self.guards.append(bool(self.values[re.search(r"%\d+", text)[0]]))
        elif text == "}":
            self.guards.pop()
        elif "cp.async" in text:
            operands = [self.values[n] for n in re.findall(r"%\d+", text)]
            vector = int(re.search(r"global\.(\d+)|\], (\d+)", text).expand(r"\1\2"))
            size = vector if len(operands) == 2 else vector * operands[2] if "inline_asm" in text else operands[2]
            if all(self.guards):
                self.copies.append((operands[0], operands[1], size))
        else:
            raise AssertionError(text)


class PtxThread(Thread):
    """A thread that passes inline PTX, all of it with side effects, to `ptx`."""

    def inline_ptx(
        self,
        text: str,
        constraints: str,
        operands: Sequence[SsaValue] = (),
        results: Sequence[Type] = (),
        *,
        side_effects: bool = False,
    ) -> list[SsaValue]:
        assert side_effects and len(constraints.split(",")) == len(results) + len(operands) + 1
        self.ptx(text, [self.values[value.name] for value in operands])
        return [self.bind(0, type) for type in results]

    def ptx(self, text: str, operands: list[int]) -> None:
        """Record a text with the values of its operands."""
        raise NotImplementedError
