"""Operations on tensor memory of two products one after the other, the second of which reads what threads make of the first.
Made by passes, never by an author; `tmem_ops` has allocation and loads.

    tmem_tile_mma     one thread starts a product of 128 rows, both operands in shared memory
    tmem_store        threads store operand A of the second product over the accumulators of the first
    tmem_operand_mma  one thread starts a product of 128 rows with that operand A
    tmem_fill         threads set the rows of accumulators to values
    tmem_scale        threads multiply the rows of accumulators by values

A *tile* is 128 rows of a buffer, a row in each lane. `signal_ops` order these accesses.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.core import Effect, Value
from tilec.ir.ops.tmem_ops import ThreadProduct, TmemAccess
from tilec.ir.types import TMEM_LANES, SharedType, TileType, TmemType, f32


@dataclass(eq=False, kw_only=True)
class TileProduct(ThreadProduct):
    """Base of products of one `tile` of the accumulators."""

    tile: int = 0

    def verify(self) -> None:
        super().verify()
        rows = self.accumulator.tmem.shape[0]
        self.require(self.operands[2].shared.dtype.bits == 16, "matrices of 16-bit elements")
        self.require(self.accumulator.tmem.dtype == f32, "sums in f32")
        self.require(rows % TMEM_LANES == 0, f"{rows} rows are no tiles of {TMEM_LANES}")
        self.require(0 <= self.tile < rows // TMEM_LANES, f"there is no tile {self.tile} of {rows} rows")


@dataclass(eq=False, kw_only=True)
class TmemTileMma(TileProduct, opcode="tmem_tile_mma", effect=Effect.SHARED):
    """Start `acc + a @ b.T`, or `a @ b.T` unless `accumulate`, in the rows of `tile`; both matrices in shared memory. Operands:
    buffer of a, stage (i32), buffer of b, stage (i32), buffer of acc, stage (i32), accumulate (bool)."""

    leading = (SharedType, TileType, SharedType, TileType, TmemType)

    def verify(self) -> None:
        super().verify()
        self.verify_shared()


@dataclass(eq=False, kw_only=True)
class TmemOperandMma(TileProduct, opcode="tmem_operand_mma", effect=Effect.SHARED):
    """Start `acc + a @ b`, or `a @ b` unless `accumulate`, in the rows of `tile`. Matrix a was stored by `tmem_store`; its
    depth is the number of rows of b. Operands: buffer of a, stage (i32), buffer of b (shared), stage (i32), buffer of acc,
    stage (i32), accumulate (bool)."""

    leading = (TmemType, TileType, SharedType, TileType, TmemType)

    @property
    def left(self) -> Value:
        return self.operands[0]

    @property
    def left_stage(self) -> Value:
        return self.operands[1]

    def verify(self) -> None:
        super().verify()
        left, right, acc = self.left.tmem, self.operands[2].shared, self.accumulator.tmem
        is_float = right.dtype.is_float and right.dtype.bits == 16
        self.require(is_float and right.shape[0] % 16 == 0, "16-bit elements, and a depth in sixteens")
        self.require(right.shape[0] <= 2 * left.shape[1], f"{right.shape[0]} elements do not fit {left.shape[1]} columns")
        self.require(acc.shape == (left.shape[0], right.shape[1]), "the accumulator is the product's")
        self.require(self.left is not self.accumulator, "a product does not write its own operand")


@dataclass(eq=False, kw_only=True)
class TmemStore(TmemAccess, opcode="tmem_store", effect=Effect.SHARED):
    """Store a matrix of 16-bit elements over a stage, two neighbors of a row in one column, from the first column of its tile
    on. Each thread stores whole rows of the lanes that its warp can access. Operands: buffer,
    stage (i32), matrix."""

    num_operands = 3
    num_results = 0

    @property
    def matrix(self) -> Value:
        return self.operands[2]

    def verify(self) -> None:
        super().verify()
        type_, tile = self.buffer.tmem, self.matrix.tile
        self.require(tile.rank == 2 and tile.dtype.is_float and tile.dtype.bits == 16, "a matrix of 16-bit floats")
        self.require(tile.shape[0] == type_.shape[0], "the matrix has the buffer's rows")
        self.require(tile.shape[1] % 2 == 0 and tile.shape[1] <= 2 * type_.shape[1], "its rows fit the columns")


@dataclass(eq=False, kw_only=True)
class TmemRows(TmemAccess):
    """Base of operations by threads on the rows of accumulators, with a value for each row.
    Operands: buffer, stage (i32), values (f32, one for each row)."""

    num_operands = 3
    num_results = 0

    @property
    def values(self) -> Value:
        return self.operands[2]

    def verify(self) -> None:
        super().verify()
        self.require(self.buffer.tmem.dtype == f32, "rows of f32")
        self.require(self.values.type == TileType(f32, self.buffer.tmem.shape[:1]), "a value of f32 for each row")


@dataclass(eq=False, kw_only=True)
class TmemFill(TmemRows, opcode="tmem_fill", effect=Effect.SHARED):
    """Set all elements of each row to a value."""


@dataclass(eq=False, kw_only=True)
class TmemScale(TmemRows, opcode="tmem_scale", effect=Effect.SHARED):
    """Multiply each row by a value. A warp whose values are all 1 leaves its rows as they are, which gives the same numbers."""
