"""Operands of a matrix instruction that reads shared memory through matrix descriptors."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.mlir.types import SsaValue


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
