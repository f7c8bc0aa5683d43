"""How warps pass the elements of a `butterfly` to each other, through scratch. Made by a pass, never by an author."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.core import Effect, Op, Value
from tilec.ir.ops.moves import verify_butterfly
from tilec.ir.types import ScratchType


@dataclass(eq=False, kw_only=True)
class ButterflyStore(Op, opcode="butterfly_store", effect=Effect.SHARED):
    """Every thread stores its elements of a tile in its own slots of scratch. Operands: scratch, tile."""

    num_operands = 2
    leading = (ScratchType,)
    num_results = 0

    def verify(self) -> None:
        self.require(isinstance(self.operands[0].type, ScratchType), "the first operand is scratch")

    def touched(self) -> tuple[tuple[Value, Effect], ...]:
        return ((self.operands[0], Effect.WRITE),)


@dataclass(eq=False, kw_only=True)
class ButterflyLoad(Op, opcode="butterfly_load", effect=Effect.SHARED):
    """Every thread loads the elements of the thread that has those at `i ^ mask`. Operand: scratch, in which a tile with the
    result's type and layout was stored."""

    num_operands = 1
    leading = (ScratchType,)

    axis: int
    mask: int

    def verify(self) -> None:
        self.require(isinstance(self.operands[0].type, ScratchType), "the operand is scratch")
        verify_butterfly(self, self.result.tile, self.axis, self.mask)

    def touched(self) -> tuple[tuple[Value, Effect], ...]:
        return ((self.operands[0], Effect.READ),)
