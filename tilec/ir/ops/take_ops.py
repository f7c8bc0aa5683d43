"""How threads read the elements of a `take` from scratch. Made by a pass, never by an author."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.core import Effect, Op, Value
from tilec.ir.layouts.blocked_layouts import row_major
from tilec.ir.ops.moves import verify_take
from tilec.ir.types import ScratchType, i32


@dataclass(eq=False, kw_only=True)
class TakeLoad(Op, opcode="take_load", effect=Effect.SHARED):
    """Every thread loads the elements at its indices along an axis. Operands: scratch, in which a `scratch_store` put a tile of
    shape `source` in row-major order; indices."""

    num_operands = 2
    leading = (ScratchType,)

    axis: int
    source: tuple[int, ...]

    def verify(self) -> None:
        scratch, indices, result = self.operands[0], self.operands[1].tile, self.result.tile
        self.require(isinstance(scratch.type, ScratchType), "the first operand is scratch")
        self.require(indices.dtype == i32, "indices are i32")
        self.require(indices.shape == result.shape, "an element for each index")
        verify_take(self, self.source, result.shape, self.axis)

    @property
    def steps(self) -> tuple[int, ...]:
        """Distance in elements between neighbors of the tile on each axis."""
        return row_major(self.source)

    def touched(self) -> tuple[tuple[Value, Effect], ...]:
        return ((self.operands[0], Effect.READ),)
