"""Operands as a step reads and writes them: typed values of a frame's lanes, and their poison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tilec.emulator.errors import Lanes, Poison
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.halves import low, whole
from tilec.emulator.machine.scalar_types import RAW

Step = Callable[[Frame], Any]
Reader = Callable[[Frame], Lanes]
PoisonReader = Callable[[Frame], "Poison | None"]


def no_poison(_: Frame) -> Poison | None:
    """The poison of a literal."""
    return None


@dataclass(frozen=True, slots=True)
class Source:
    """A readable operand: `value(frame)` returns a typed array (a NumPy scalar for a literal), `poison(frame)` its poison,
    `halves(frame)` the same with half flags (`tilec.emulator.machine.halves`). Call `value` first."""

    value: Reader
    poison: PoisonReader
    constant: Any = None
    halves: PoisonReader = no_poison


Target = Callable[[Frame, Lanes, "Poison | None"], None]
"""Writes a typed array and its poison to a register."""


@lru_cache(maxsize=1 << 14)
def of_register(index: int, width: int, bits: int, dtype: Any) -> Source:
    """Register `index` of `width` bits, read as a type of `bits`; cached for all instructions that read it this way."""
    raw = RAW[bits]

    def plain(frame: Frame) -> Lanes:
        value = frame.values[index]
        return frame.load(index) if value is None else value

    def viewed(frame: Frame) -> Lanes:
        value = frame.values[index]
        return (frame.load(index) if value is None else value).view(dtype)

    def narrowed(frame: Frame) -> Lanes:
        return frame.get(index).astype(raw).view(dtype)

    def stored(frame: Frame) -> Poison | None:
        return frame.poison[index] if frame.values[index] is not None else frame.get_poison(index)

    def poison(frame: Frame) -> Poison | None:
        return whole(stored(frame))

    def lower(frame: Frame) -> Poison | None:
        return low(stored(frame))

    halves = stored if width == bits else lower if width == 2 * bits else poison
    return Source(narrowed if width > bits else plain if dtype is raw else viewed, poison, halves=halves)
