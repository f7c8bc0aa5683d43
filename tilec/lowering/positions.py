"""Where an access is on an axis: one value, in one width, that its address and its mask are both made from.

In: an offset or index of any integer dtype. Out: the same number as i32, where every number of its dtype is one, else as i64
(`i64` and `u32`). A mask compares it, as an unsigned number of its own width, with an extent that fits i32: a negative
position is then larger than any extent, and so is one that a step inside the box carries past the largest signed number.
Addresses are 64-bit and extend the same value by its sign.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.core import Value
from tilec.lowering.tensor_core import Writer, arith, compare


@dataclass(frozen=True, slots=True)
class Position:
    """An SSA name and its type, i32 or i64; always a signed number."""

    name: str
    type: str

    def wide(self, out: Writer) -> str:
        """As i64."""
        return self.name if self.type == "i64" else out.value(f"llvm.sext {self.name} : i32 to i64")

    def moved(self, out: Writer, step: str) -> Position:
        """Further on by `step` (i32, not negative)."""
        if self.type == "i64":
            step = out.value(f"llvm.zext {step} : i32 to i64")
        return Position(arith(out, "add", self.name, step, self.type), self.type)

    def below(self, out: Writer, extent: str) -> str:
        """Whether this lies in `0 .. extent` (i32), as i1."""
        return compare(out, "ult", self.name, self.extent(out, extent), self.type)

    def extent(self, out: Writer, extent: str) -> str:
        """An extent (i32, not negative) in the type of this position."""
        return extent if self.type == "i32" else out.value(f"llvm.zext {extent} : i32 to i64")


def position(out: Writer, value: Value, name: str) -> Position:
    """The position that `name`, held of the integer `value`, stands for."""
    dtype = value.tile.dtype
    if dtype.bits == 64:
        return Position(name, "i64")
    if dtype.bits == 32:
        return Position(name, "i32") if dtype.kind == "i" else Position(out.value(f"llvm.zext {name} : i32 to i64"), "i64")
    extend = "sext" if dtype.kind == "i" else "zext"
    return Position(out.value(f"llvm.{extend} {name} : i{dtype.bits} to i32"), "i32")
