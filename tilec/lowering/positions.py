"""The position of an access on an axis: one value of one width, from which both its address and its mask are computed.

In: an offset or index of any integer dtype. Out: the same number as i32 if i32 represents every value of the dtype, else in 64
bits (`i64`, `u64` and `u32`). A mask compares it, as an unsigned number of its own width, with an extent that fits i32: a
negative position is then larger than any extent, and so is one that overflows the largest signed number within the box. So is a
number of `u64` from 2^63 on, but a box that begins there could end past 2^64, at the first elements: `start` replaces it.
Addresses are 64-bit and sign-extend the same value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilec.ir.core import Value
from tilec.ir.types import u64
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, i32, i64

LARGEST: Final = 2**63 - 1
"""The largest number of i64: outside of every tensor, and so is what lies up to 2^63 past it."""


@dataclass(frozen=True, slots=True)
class Position:
    """An i32 or i64; signed, but for the numbers of `u64` from 2^63 on, which no access that is executed has."""

    value: SsaValue

    def wide(self, out: Builder) -> SsaValue:
        """Sign-extended to i64."""
        return self.value if self.value.type is i64 else out.extended(self.value, i64, signed=True)

    def moved(self, out: Builder, step: SsaValue) -> Position:
        """Advanced by `step` (i32, not negative)."""
        return Position(out.add(self.value, self.extent(out, step)))

    def below(self, out: Builder, extent: SsaValue) -> SsaValue:
        """Whether this lies in `0 .. extent` (i32), as i1."""
        return out.compare("ult", self.value, self.extent(out, extent))

    def extent(self, out: Builder, extent: SsaValue) -> SsaValue:
        """An extent (i32, not negative) in the type of this position."""
        return extent if self.value.type is i32 else out.zext(extent, i64)


def position(out: Builder, value: Value, register: SsaValue) -> Position:
    """The position that `register`, an integer with the dtype of `value`, represents."""
    dtype = value.tile.dtype
    if dtype.bits == 64:
        return Position(register)
    if dtype.bits == 32:
        return Position(register if dtype.kind == "i" else out.zext(register, i64))
    return Position(out.extended(register, i32, signed=dtype.kind == "i"))


def start(out: Builder, value: Value, register: SsaValue) -> Position:
    """The position of the first element of a box, from which others are some steps away: at most 2^63 - 1."""
    if value.tile.dtype != u64:
        return position(out, value, register)
    largest = out.constant(LARGEST, i64)
    return Position(out.select(out.compare("ult", register, largest), register, largest))
