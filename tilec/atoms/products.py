"""The atoms of asynchronous matrix instructions, whose operands are in shared memory, by family.

Schedules, their verifier and lowering use such an instruction through `Atom` and `MOVES` alone. A family is added by its value
in `tilec.target.families`, and its atom here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from tilec.atoms import tcgen05, wgmma
from tilec.atoms.staged_operands import Left, Right
from tilec.ir.layouts.layout import Layout
from tilec.ir.types import DType
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue
from tilec.target.families import TCGEN05, WGMMA, Family, MemorySpace, family_named

Move = Callable[[Builder, list[SsaValue], Layout, Layout], list[SsaValue]]
"""Moves a tile between registers and another memory space: this thread's values before, the two layouts, values after."""


class Atom(Protocol):
    """What each of these atoms has."""

    def fits(self, rows: int, columns: int, warps: int) -> bool:
        """Whether its instructions compute a (rows, columns) accumulator for so many consumer warps."""
        ...

    def accumulator(self, rows: int, columns: int, warps: int) -> Layout:
        """Layout of a (rows, columns) accumulator."""
        ...

    def descriptor(self, out: Builder, stage: SsaValue, mn_stride: int = 0) -> SsaValue:
        """The descriptor (i64) of the matrix at a shared pointer; `mn_stride`: bytes between sub-tiles if it is MN-major."""
        ...


class RegisterAtom(Atom, Protocol):
    """What an atom has whose accumulators are in registers: `Layout.num_values` values per thread."""

    def own_rows(self, out: Builder, matrix_descriptor: SsaValue, thread: SsaValue, rows: int) -> SsaValue:
        """The descriptor of the `rows` rows of operand A that the issuer to which a thread belongs multiplies."""
        ...

    def pack(self, out: Builder, low: SsaValue, high: SsaValue, dtype: str) -> SsaValue:
        """Two f32 rounded to a 16-bit dtype, as one i32 of operand A."""
        ...

    def start(
        self,
        out: Builder,
        left: Left,
        right: Right,
        accumulators: list[SsaValue],
        tiles: int,
        columns: int,
        depth: int,
        dtypes: tuple[DType, DType],
        zero_init: bool,
    ) -> list[SsaValue]:
        """Start the product of an issuer's `tiles` instructions along M, of operands of `dtypes`; the accumulators that it will
        have written."""
        ...

    def wait(self, out: Builder, accumulators: list[SsaValue], pending: int, before: list[SsaValue]) -> list[SsaValue]:
        """The accumulators once at most `pending` products are unfinished; the values `before` are computed first."""
        ...

    def renamed(self, out: Builder, accumulator: SsaValue) -> SsaValue:
        """A finished accumulator of f32, on which the next iteration of a loop computes."""
        ...


ATOMS: Final[dict[str, Atom]] = {WGMMA.name: wgmma, TCGEN05.name: tcgen05}
_REGISTER_ATOMS: Final[dict[str, RegisterAtom]] = {WGMMA.name: wgmma}
MOVES: Final[dict[MemorySpace, Move]] = {}
"""How a tile comes from registers into another memory space, and back."""


def atom_of(name: str) -> tuple[Family, RegisterAtom]:
    """The family of that name, whose accumulators are in registers, and its atom."""
    family = family_named(name)
    assert family is not None, name
    return family, _REGISTER_ATOMS[name]
