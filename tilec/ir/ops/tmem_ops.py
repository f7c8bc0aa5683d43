"""Operations on tensor memory, where `tcgen05` instructions have their accumulators. Made by passes, never by an author.

    tmem_reserve     one warp allocates columns for the block, and publishes their address
    tmem_alloc       a ring of accumulators in those columns
    tmem_mma         one thread starts a product into a stage of it
    commit_mma       that stage is full once the thread's products are complete      producer of accumulators
    release_mma      a stage of operands is free once the thread's products are complete        consumer of operands
    tmem_load        all threads of a role load a stage into registers
    tmem_free        the warp of `tmem_reserve` frees the columns

Products run asynchronously and in order. Only `commit_mma` and `release_mma` say when they are complete (PTX ISA,
"tcgen05.commit"): they signal an mbarrier of the ring. `tilec.passes.schedule.checks.tmem_check` checks allocation and use,
`ring_check` the order of accesses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from tilec.ir.core import Effect, Op, Value
from tilec.ir.ops.staging_ops import GroupProduct
from tilec.ir.ops.sync_ops import RingOp
from tilec.ir.types import (
    TMEM_COLUMNS,
    TMEM_LANES,
    RingType,
    SharedType,
    TileType,
    TmemSpaceType,
    TmemType,
    boolean,
    f32,
    i32,
)

LEAST_COLUMNS: Final = 32
"""Columns of the smallest allocation (PTX ISA, "tcgen05.alloc")."""
HALF_LANES: Final = TMEM_LANES // 2
"""Rows of the smallest matrix."""


def allocated_columns(needed: int) -> int:
    """Columns of the smallest allocation with `needed` columns: a power of two."""
    return max(LEAST_COLUMNS, 1 << (needed - 1).bit_length())


@dataclass(eq=False, kw_only=True)
class TmemReserve(Op, opcode="tmem_reserve", effect=Effect.SHARED):
    """The first warp of the block allocates the columns of the result's type, waits until they are free, and stores their
    address at byte `offset` of dynamic shared memory; the block allocates no more. Other threads use them after a barrier. No
    operands."""

    num_operands = 0
    makes_tiles = False

    offset: int

    @property
    def bytes(self) -> int:
        """Shared memory of the address."""
        return 4

    def verify(self) -> None:
        type_ = self.result.type
        self.require(isinstance(type_, TmemSpaceType), f"{type_} is no space in tensor memory")
        assert isinstance(type_, TmemSpaceType)
        fits = LEAST_COLUMNS <= type_.columns <= TMEM_COLUMNS and allocated_columns(type_.columns) == type_.columns
        self.require(fits, f"an allocation has a power of two of columns, {LEAST_COLUMNS} to {TMEM_COLUMNS}")
        self.require(self.offset >= 0 and self.offset % 4 == 0, "the address is aligned to 4 bytes")


@dataclass(eq=False, kw_only=True)
class TmemAlloc(Op, opcode="tmem_alloc", effect=Effect.SHARED):
    """A ring's accumulators, from column `column` of the space on. Operands: space, ring."""

    num_operands = 2
    leading = (TmemSpaceType, RingType)
    makes_tiles = False

    column: int = 0

    @property
    def ring(self) -> Value:
        return self.operands[1]

    @property
    def end(self) -> int:
        """The column after its last."""
        return self.column + self.result.tmem.columns

    def verify(self) -> None:
        type_, space = self.result.type, self.operands[0].type
        self.require(isinstance(type_, TmemType), f"{type_} is no buffer in tensor memory")
        assert isinstance(type_, TmemType) and isinstance(space, TmemSpaceType)
        rows, columns = type_.shape
        self.require(rows == HALF_LANES or (rows > 0 and rows % TMEM_LANES == 0), f"{rows} rows do not fill the lanes")
        is_sum = type_.dtype in (f32, i32)
        self.require(columns >= 1 and type_.stages >= 1 and is_sum, f"{type_} is no ring of accumulators")
        self.require(self.operands[1].type == RingType(type_.stages), "its ring has as many stages")
        self.require(self.column >= 0 and self.end <= space.columns, "the columns lie in the space")


@dataclass(eq=False, kw_only=True)
class ThreadProduct(GroupProduct):
    """Base of products that one thread starts into accumulators in tensor memory. Each buffer precedes its stage (i32); the
    last three operands are the buffer of acc, its stage, and accumulate (bool)."""

    blocks: ClassVar[int] = 1
    """Blocks whose shared memory it reads; each has an equal part of the rows of b."""
    num_operands = 7
    num_results = 0

    @property
    def accumulator(self) -> Value:
        return self.operands[-3]

    @property
    def accumulator_stage(self) -> Value:
        return self.operands[-2]

    @property
    def accumulate(self) -> Value:
        return self.operands[-1]

    def verify(self) -> None:
        super().verify()
        stages = [value for value, before in zip(self.operands[1:], self.operands, strict=False) if _is_buffer(before)]
        self.require(all(value.type == TileType(i32) for value in stages), "the stages are i32 scalars")
        self.require(self.accumulate.type == TileType(boolean), "whether to accumulate is a truth value")

    def verify_shared(self) -> None:
        """Rules of `acc + a @ b.T` with both matrices, the first and third operand, in shared memory."""
        left, right = self.operands[0].shared, self.operands[2].shared
        self.verify_dtypes(left, right, self.accumulator.tmem.dtype)
        self.require(left.shape[1] == right.shape[1], "matrices of one depth")
        whole = (left.shape[0], self.blocks * right.shape[0])
        self.require(self.accumulator.tmem.shape == whole, "the accumulator is the product's")


@dataclass(eq=False, kw_only=True)
class TmemMma(ThreadProduct, opcode="tmem_mma", effect=Effect.SHARED):
    """Start `acc + a @ b.T`, or `a @ b.T` unless `accumulate`, both matrices whole and in shared memory. One thread executes
    it. Operands: buffer of a, stage (i32), buffer of b, stage (i32), buffer of acc, stage (i32), accumulate (bool)."""

    leading = (SharedType, TileType, SharedType, TileType, TmemType)

    def verify(self) -> None:
        super().verify()
        self.verify_shared()


@dataclass(eq=False, kw_only=True)
class CommitMma(RingOp, opcode="commit_mma", effect=Effect.SHARED):
    """The acquired stage is full once this thread's products so far are complete. Operands: ring, stage (i32)."""

    num_extra_operands = 1


@dataclass(eq=False, kw_only=True)
class ReleaseMma(RingOp, opcode="release_mma", effect=Effect.SHARED):
    """The stage is free once this thread's products so far are complete. Operands: ring, stage (i32)."""

    num_extra_operands = 1


@dataclass(eq=False, kw_only=True)
class TmemAccess(Op):
    """Base of accesses by threads to a stage of a buffer, complete when the operation is. The first operands are the buffer and
    the stage (i32)."""

    leading = (TmemType,)

    @property
    def buffer(self) -> Value:
        return self.operands[0]

    @property
    def stage(self) -> Value:
        return self.operands[1]

    def verify(self) -> None:
        self.require(self.stage.type == TileType(i32), "the stage is an i32 scalar")


@dataclass(eq=False, kw_only=True)
class TmemLoad(TmemAccess, opcode="tmem_load", effect=Effect.SHARED):
    """Load a matrix into registers. The layout assigns to each warp rows of the lanes that it can access. Operands: buffer,
    stage (i32)."""

    num_operands = 2

    def verify(self) -> None:
        super().verify()
        type_ = self.buffer.tmem
        self.require(self.result.type == TileType(type_.dtype, type_.shape), "the result is the matrix")


@dataclass(eq=False, kw_only=True)
class TmemFree(Op, opcode="tmem_free", effect=Effect.SHARED):
    """The warp that allocated the columns frees them; nobody uses them any more. Operand: space."""

    num_operands = 1
    num_results = 0
    leading = (TmemSpaceType,)


def _is_buffer(value: Value) -> bool:
    return isinstance(value.type, SharedType | TmemType)
