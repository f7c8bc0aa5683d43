"""Operands of a matrix instruction that reads shared memory through matrix descriptors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilec.ir.facts.tensor_maps import MAP_SWIZZLES
from tilec.ir.types import DType
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, i32, i64

ROW_BYTES: Final = MAP_SWIZZLES[-1]
"""Bytes of a sub-tile's row, which is the widest swizzle span."""
UNIT: Final = 16
"""Descriptors have byte counts divided by this."""
_ADDRESS_MASK: Final = 0x3FFFF


@dataclass(frozen=True, slots=True)
class Left:
    """Operand A: a descriptor and the bytes of a sub-tile; or packed registers (i32), four for each 16 of K, grouped by tiles
    of 64 rows."""

    matrix_descriptor: SsaValue | None = None
    atom_bytes: int = 0
    a_registers: tuple[SsaValue, ...] = ()


@dataclass(frozen=True, slots=True)
class Right:
    """Operand B: a descriptor, the bytes of a sub-tile, and whether it is MN-major (`mn_major`)."""

    matrix_descriptor: SsaValue
    atom_bytes: int
    mn_major: bool = False


def matrix_descriptor(out: Builder, stage: SsaValue, fields: int) -> SsaValue:
    """The descriptor (i64) of the matrix at a shared pointer; `fields` is that of a matrix at address 0."""
    encoded_address = out.lshr(out.bit_and(out.address(stage, i32), _ADDRESS_MASK), 4)
    return out.bit_or(out.zext(encoded_address, i64), fields)


def descriptor_offset(k: int, atom_bytes: int, mn_major: bool, dtype: DType) -> int:
    """The descriptor increment for offset `k` along K."""
    if mn_major:
        return k * ROW_BYTES // UNIT
    atom, byte = divmod(k * dtype.bytes, ROW_BYTES)
    return (atom * atom_bytes + byte) // UNIT
