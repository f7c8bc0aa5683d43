"""Operations that move the elements of a tile along an axis: each result has the operand's elements in another order.

Authors write `butterfly` and the words that are composed of it (`flip`, `cumsum`, `scan` and the like), and `sort`, which
`tilec.passes.schedule.simplify.networks` replaces by butterflies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilec.ir.core import Op
from tilec.ir.facts.range_facts import Range
from tilec.ir.types import TileType


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


def verify_butterfly(op: Op, tile: TileType, axis: int, mask: int) -> None:
    """Raise VerifyError unless the positions `i ^ mask` of an axis are positions of it too."""
    op.require(0 <= axis < tile.rank, "axis out of range")
    extent = tile.shape[axis]
    op.require(extent & (extent - 1) == 0, f"the extent {extent} is no power of two")
    op.require(0 < mask < extent, f"the mask {mask} is not in 1..{extent}")
