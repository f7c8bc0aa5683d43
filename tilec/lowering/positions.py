"""Where an access is on an axis: one value, in one width, that its address and its mask are both made from.

In: an offset or index of any integer dtype. Out: the same number as i32, where every number of its dtype is one, else as i64
(`i64` and `u32`). A mask compares it, as an unsigned number of its own width, with an extent that fits i32: a negative
position is then larger than any extent, and so is one that a step inside the box carries past the largest signed number.
Addresses are 64-bit and extend the same value by its sign.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.core import Value
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, i32, i64


@dataclass(frozen=True, slots=True)
class Position:
    """An i32 or i64; always a signed number."""

    value: SsaValue

    def wide(self, out: Builder) -> SsaValue:
        """As i64."""
        return self.value if self.value.type is i64 else out.extended(self.value, i64, signed=True)

    def moved(self, out: Builder, step: SsaValue) -> Position:
        """Further on by `step` (i32, not negative)."""
        return Position(out.add(self.value, self.extent(out, step)))

    def below(self, out: Builder, extent: SsaValue) -> SsaValue:
        """Whether this lies in `0 .. extent` (i32), as i1."""
        return out.compare("ult", self.value, self.extent(out, extent))

    def extent(self, out: Builder, extent: SsaValue) -> SsaValue:
        """An extent (i32, not negative) in the type of this position."""
        return extent if self.value.type is i32 else out.zext(extent, i64)


def position(out: Builder, value: Value, held: SsaValue) -> Position:
    """The position that `held`, of the integer `value`, stands for."""
    dtype = value.tile.dtype
    if dtype.bits == 64:
        return Position(held)
    if dtype.bits == 32:
        return Position(held if dtype.kind == "i" else out.zext(held, i64))
    return Position(out.extended(held, i32, signed=dtype.kind == "i"))
