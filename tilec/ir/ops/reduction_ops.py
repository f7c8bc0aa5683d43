"""A reduction whose elements several warps have, in two steps through scratch: stores of partial results, a barrier, loads."""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.core import Effect, Op, Value
from tilec.ir.ops import REDUCE_KINDS
from tilec.ir.types import ScratchType, TileType, i32


@dataclass(eq=False, kw_only=True)
class ReduceStore(Op, opcode="reduce_store", effect=Effect.SHARED):
    """Reduce the part of an axis that each warp has, and store the partial results into scratch, a slot for each thread.
    Operands: scratch, tile. `kind` and `axis` are those of `reduce`."""

    num_operands = 2
    leading = (ScratchType,)
    num_results = 0

    kind: str
    axis: int

    def verify(self) -> None:
        _verify_reduction(self, self.operands[1].tile)

    def touched(self) -> tuple[tuple[Value, Effect], ...]:
        return ((self.operands[0], Effect.WRITE),)


@dataclass(eq=False, kw_only=True)
class ReduceCombine(Op, opcode="reduce_combine", effect=Effect.SHARED):
    """Combine the partial results of the warps that share elements of the result, which is that of `reduce`. Operands: scratch,
    and the tile that was reduced, whose layout identifies those warps."""

    num_operands = 2
    leading = (ScratchType,)

    kind: str
    axis: int

    def verify(self) -> None:
        source = self.operands[1].tile
        _verify_reduction(self, source)
        dtype = i32 if self.kind.startswith("arg") else source.dtype
        shape = source.shape[: self.axis] + source.shape[self.axis + 1 :]
        self.require(self.result.type == TileType(dtype, shape), f"the result is {dtype} of shape {shape}")

    def touched(self) -> tuple[tuple[Value, Effect], ...]:
        return ((self.operands[0], Effect.READ),)


def _verify_reduction(op: ReduceStore | ReduceCombine, tile: TileType) -> None:
    op.require(isinstance(op.operands[0].type, ScratchType), "the first operand is scratch")
    op.require(op.kind in REDUCE_KINDS, f"unknown kind {op.kind}")
    op.require(0 <= op.axis < tile.rank, "axis out of range")
