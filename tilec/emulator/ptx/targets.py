"""Which instructions a module's `.target` has: raises UnsupportedPtx for one that its chip lacks.

In: the name after `.target` and the instructions of a function. The rows follow the "Target ISA Notes" of each instruction
(PTX ISA, https://docs.nvidia.com/cuda/parallel-thread-execution/). Only what chips from sm_80 on differ in has a row. A feature
of an architecture (`a`) exists there alone; one of a family (`f`) also on the architecture-specific targets of its members.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tilec.emulator.errors import UnsupportedPtx
from tilec.emulator.ptx.syntax import Instruction

_TARGET: Final = re.compile(r"sm_(\d+)([af]?)")
_WGMMA: Final = {90: "a"}
_TCGEN05: Final = {100: "af", 101: "af", 103: "af", 110: "af"}
_INTEGER_PRODUCTS: Final = {100: "a", 101: "a", 110: "a"}
_CONSUMER: Final = {120: "af", 121: "af"}
_REGISTERS: Final = _WGMMA | _TCGEN05 | _CONSUMER
_NARROW: Final = _TCGEN05 | _CONSUMER


@dataclass(frozen=True, slots=True)
class Row:
    """Instructions with an opcode of `opcodes` (space-separated; empty: any) whose modifiers include `words`. They exist from
    the number `since` on, or on the targets of `only`: suffixes by number."""

    opcodes: str
    words: str
    since: int = 0
    only: dict[int, str] | None = None

    def is_of(self, opcode: str, modifiers: set[str]) -> bool:
        """Whether an instruction is one of these."""
        return (not self.opcodes or opcode in self.opcodes.split()) and modifiers.issuperset(self.words.split())

    def exists(self, number: int, suffix: str) -> bool:
        """Whether `sm_<number><suffix>` has them."""
        return number >= self.since if self.only is None else bool(suffix) and suffix in self.only.get(number, "")

    @property
    def where(self) -> str:
        """The targets that have them, for a message."""
        if self.only is None:
            return f"sm_{self.since} and later"
        return ", ".join(f"sm_{number}{suffix}" for number, suffixes in self.only.items() for suffix in suffixes)


_BF16: Final = Row("cvt", "bf16", 90)
_THREE: Final = Row("min max", "f32", 100)
"""Rows whose instructions the words of the instruction do not decide."""
ROWS: Final = (
    Row("cp", "async bulk", 90), Row("cp", "reduce async bulk", 90), Row("griddepcontrol", "", 90),
    Row("mbarrier", "expect_tx", 90), Row("mbarrier", "complete_tx", 90), Row("mbarrier", "try_wait", 90),
    Row("stmatrix", "", 90), Row("elect", "", 90), Row("mapa getctarank", "", 90), Row("barrier", "cluster", 90),
    Row("fence", "proxy async", 90), Row("fence", "proxy async::generic", 90), Row("fence", "proxy async::global", 90),
    Row("fence", "proxy async::shared::cta", 90), Row("fence", "proxy async::shared::cluster", 90),
    Row("fence", "proxy tensormap::generic", 90), Row("fence", "mbarrier_init", 90), Row("fence", "acquire", 90),
    Row("fence", "release", 90), Row("", "shared::cluster", 90), Row("", "cluster", 90), Row("multimem tensormap", "", 90),
    Row("red atom", "bf16", 90), Row("red atom", "bf16x2", 90), Row("red atom", "global v2", 90),
    Row("red atom", "global v4", 90), Row("red atom", "global v8", 90), Row("st red", "async", 90),
    Row("clusterlaunchcontrol", "", 100), Row("ld st", "v8", 100), Row("ld st", "v4 b64", 100), Row("ld st", "v4 u64", 100),
    Row("ld st", "v4 f64", 100), Row("add sub mul", "bf16", 90), Row("add sub mul", "bf16x2", 90),
    Row("set setp", "bf16", 90), Row("set setp", "bf16x2", 90), Row("ex2 tanh", "bf16", 90), Row("ex2 tanh", "bf16x2", 90),
    Row("add sub mul fma", "f32x2", 100), Row("cvt", "e4m3x2", 89), Row("cvt", "e5m2x2", 89), Row("mma", "e4m3", 89),
    Row("mma", "e5m2", 89), Row("cvt", "e2m1x2", only=_NARROW), Row("cvt", "e2m3x2", only=_NARROW),
    Row("cvt", "e3m2x2", only=_NARROW), Row("cvt", "ue8m0x2", only=_NARROW), Row("redux", "f32", only=_TCGEN05),
    Row("mma", "block_scale", only=_CONSUMER), Row("mma", "kind::f8f6f4", only=_NARROW), Row("wgmma", "", only=_WGMMA),
    Row("tcgen05", "", only=_TCGEN05), Row("tcgen05", "kind::i8", only=_INTEGER_PRODUCTS),
    Row("setmaxnreg", "", only=_REGISTERS),
)  # fmt: skip


def missing(target: str, instruction: Instruction) -> Row | None:
    """The row that says that a target lacks an instruction; None if it has it, or if the target is unknown."""
    match = _TARGET.fullmatch(target)
    if match is None:
        return None
    number, suffix = int(match[1]), match[2]
    rows = [row for row in ROWS if row.is_of(instruction.opcode, set(instruction.modifiers))]
    rows += [_BF16] if _converts_bf16(instruction) else [_THREE] if _is_of_three(instruction) else []
    return next((row for row in rows if not row.exists(number, suffix)), None)


def _converts_bf16(instruction: Instruction) -> bool:
    """Whether it converts bf16 from or to another type than f32, which every chip here converts."""
    types = set(instruction.modifiers[-2:])
    return instruction.opcode == "cvt" and "bf16" in types and not types & {"f32"}


def _is_of_three(instruction: Instruction) -> bool:
    """Whether it is an extremum of three floats."""
    return instruction.opcode in ("min", "max") and len(instruction.operands) == 4


def check(target: str, instructions: Iterable[Instruction]) -> None:
    """Raises UnsupportedPtx for the first instruction that the target lacks."""
    for instruction in instructions:
        row = missing(target, instruction)
        if row is not None:
            reason = f"{instruction.opcode} does not exist on {target}, but on {row.where}"
            raise UnsupportedPtx(reason, instruction.line, instruction.text)
