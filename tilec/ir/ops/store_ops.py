"""Operations that store a tile to a tensor through shared memory, some columns at a time. Made by passes, never by an author.

    scratch_store_rows    all threads of a role store their elements of some columns of a matrix into scratch
    tensor_store          one thread starts the copy from scratch to the tensor, through a tensor map
    wait_stores           that thread waits until its copies have read their scratch, or are complete

The copy is asynchronous and uses shared memory through the async proxy (PTX ISA, `cp.async.bulk.tensor`, "Async proxy"). So
each thread fences its stores, and a barrier precedes the copy; another barrier follows the wait, before any thread stores to
that scratch again. `tilec.passes.schedule.checks.store_check` checks this on every function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilec.ir.core import Effect, Op, Value
from tilec.ir.facts.tensor_maps import MAP_SWIZZLES, MAX_BOX
from tilec.ir.types import ScratchType, SharedType, TensorType, TileType, i32

ELEMENT_BYTES: Final = 2
"""Bytes of an element that `stmatrix` stores."""


@dataclass(eq=False, kw_only=True)
class ScratchStoreRows(Op, opcode="scratch_store_rows", effect=Effect.SHARED):
    """Store columns `column` up to `column` + `columns` of a matrix of 16-bit elements into scratch, as consecutive rows of 32,
    64 or 128 bytes. Their 16-byte chunks are permuted like those of a shared buffer, which is the swizzle of a tensor map.
    Operands: scratch, tile."""

    num_operands = 2
    leading = (ScratchType,)
    num_results = 0

    column: int
    columns: int

    @property
    def tile(self) -> Value:
        return self.operands[1]

    @property
    def rows(self) -> SharedType:
        """Layout of the rows in scratch."""
        tile = self.tile.tile
        return SharedType(tile.dtype, (tile.shape[0], self.columns), 1)

    def verify(self) -> None:
        tile = self.tile.tile
        self.require(tile.rank == 2 and tile.dtype.bytes == ELEMENT_BYTES, "the tile is a matrix of 16-bit elements")
        self.require(0 <= self.column <= tile.shape[1] - self.columns, "the columns are those of the tile")
        self.require(self.columns * ELEMENT_BYTES in MAP_SWIZZLES, "a row has 32, 64 or 128 bytes")
        self.require(self.rows.bytes <= self.operands[0].scratch.bytes, "the rows fit the scratch")

    def touched(self) -> tuple[tuple[Value, Effect], ...]:
        return ((self.operands[0], Effect.WRITE),)


@dataclass(eq=False, kw_only=True)
class TensorStore(Op, opcode="tensor_store", effect=Effect.WRITE):
    """Start copying the rows that `scratch_store_rows` stored in scratch to the box of `rows` x `columns` elements that begins
    `column` columns after the offsets. Elements outside the tensor are not written. Operands: tensor, scratch, an offset (i32)
    per axis."""

    leading = (TensorType, ScratchType)
    num_results = 0

    rows: int
    columns: int
    column: int = 0

    @property
    def target(self) -> Value:
        return self.operands[0]

    @property
    def scratch(self) -> Value:
        return self.operands[1]

    @property
    def offsets(self) -> list[Value]:
        return self.operands[2:]

    def verify(self) -> None:
        tensor = self.target.tensor
        self.require(tensor.rank == 2 == len(self.offsets), "the tensor has two axes, and an offset for each")
        self.require(all(value.type == TileType(i32) for value in self.offsets), "coordinates are i32 scalars")
        self.require(tensor.dtype.bytes == ELEMENT_BYTES, "the tensor has 16-bit elements")
        self.require(1 <= self.rows <= MAX_BOX and self.column >= 0, f"a box has 1 to {MAX_BOX} rows")
        self.require(self.columns * ELEMENT_BYTES in MAP_SWIZZLES, "a row has 32, 64 or 128 bytes")

    def touched(self) -> tuple[tuple[Value, Effect], ...]:
        return ((self.scratch, Effect.READ), (self.target, Effect.WRITE))


@dataclass(eq=False, kw_only=True)
class WaitStores(Op, opcode="wait_stores", effect=Effect.SHARED):
    """Wait until all `tensor_store`s of this role except the newest `pending` have read their scratch, the operands; with
    `complete`, until they have also written their tensors."""

    others = (ScratchType,)
    num_results = 0

    pending: int = 0
    complete: bool = False

    def verify(self) -> None:
        self.require(bool(self.operands), "it waits for the readers of some scratch")
        self.require(self.pending >= 0, f"{self.pending} stores cannot be pending")

    def touched(self) -> tuple[tuple[Value, Effect], ...]:
        return tuple((value, Effect.READ) for value in self.operands)
