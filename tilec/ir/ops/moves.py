"""Operations that move the elements of a tile along an axis: each result has elements of the operand at other positions.

Authors write `butterfly` and the words that are composed of it (`flip`, `cumsum`, `scan` and the like), `sort`, which
`tilec.passes.schedule.simplify.networks` replaces by butterflies, and `take`, whose order is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilec.ir.core import Op
from tilec.ir.facts.range_facts import Range
from tilec.ir.types import TileType, i32


@dataclass(eq=False, kw_only=True)
class Butterfly(Op, opcode="butterfly"):
    """Element `i ^ mask` of the operand at position `i` of an axis, whose extent is a power of two greater than `mask`; every
    bit is kept."""

    num_operands = 1

    axis: int
    mask: int

    def verify(self) -> None:
        self.require(self.operands[0].type == self.result.type, "operand and result types differ")
        verify_butterfly(self, self.result.tile, self.axis, self.mask)

    def result_range(self, operands: Sequence[Range]) -> Range | None:
        return operands[0]


@dataclass(eq=False, kw_only=True)
class Sort(Op, opcode="sort"):
    """Sorts tiles along an axis by the first one, the keys: a result for each operand, in the order of the keys. Keys are in
    ascending order, or in descending order; -0 is below 0, and any NaN above all numbers. Equal keys, of which all NaN are,
    keep the order of their positions. The extent of the axis is a power of two."""

    num_results = None

    axis: int
    descending: bool = False

    def verify(self) -> None:
        self.require(bool(self.operands), "there are keys")
        self.require([v.type for v in self.operands] == [v.type for v in self.results], "operand and result types differ")
        shape = self.operands[0].tile.shape
        self.require(all(value.tile.shape == shape for value in self.operands), "the tiles have one shape")
        self.require(self.operands[0].tile.dtype.kind != "b", "keys are numbers")
        self.require(0 <= self.axis < len(shape), "axis out of range")
        extent = shape[self.axis]
        self.require(extent & (extent - 1) == 0, f"the extent {extent} is no power of two")


@dataclass(eq=False, kw_only=True)
class Take(Op, opcode="take"):
    """The element of a tile at a computed position along an axis, every bit kept: at `[i, j]` of the result, for axis 1,
    element `[i, indices[i, j]]`. Operands: the tile, and indices of i32 of the result's shape, which differs from the tile's
    on the axis alone. The prover shows that every index is within the axis; one outside would count as the last position."""

    num_operands = 2

    axis: int

    def verify(self) -> None:
        source, indices = (value.tile for value in self.operands)
        self.require(indices.dtype == i32, "indices are i32")
        self.require(self.result.tile == TileType(source.dtype, indices.shape), "an element for each index")
        verify_take(self, source.shape, indices.shape, self.axis)

    def result_range(self, operands: Sequence[Range]) -> Range | None:
        return operands[0]


def verify_take(op: Op, source: tuple[int, ...], shape: tuple[int, ...], axis: int) -> None:
    """Raise VerifyError unless the shapes of the tile and of the result differ on the axis alone."""
    op.require(0 <= axis < len(source), "axis out of range")
    others = source[:axis] + source[axis + 1 :] == shape[:axis] + shape[axis + 1 :]
    op.require(len(shape) == len(source) and others, "the shapes differ on the axis alone")


def verify_butterfly(op: Op, tile: TileType, axis: int, mask: int) -> None:
    """Raise VerifyError unless the positions `i ^ mask` of an axis are positions of it too."""
    op.require(0 <= axis < tile.rank, "axis out of range")
    extent = tile.shape[axis]
    op.require(extent & (extent - 1) == 0, f"the extent {extent} is no power of two")
    op.require(0 < mask < extent, f"the mask {mask} is not in 1..{extent}")
