"""Operations on shared memory and on layouts, made by the staging pass and never by a kernel's author.

A buffer is a ring of stages. Copies into it are asynchronous; they are grouped by `commit_copies`, and `wait_copies` makes
all but the newest groups of every thread visible to the whole block.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.core import Effect, Op, Value, VerifyError
from tilec.ir.types import SharedType, TensorType, TileType, i32


def _require(condition: bool, op: Op, rule: str) -> None:
    if not condition:
        raise VerifyError(f"{op.opcode}: {rule}")


@dataclass(eq=False, kw_only=True)
class SharedAlloc(Op, opcode="shared_alloc"):
    """A ring of matrices in dynamic shared memory, `offset` bytes from its start. No operands. Lives to the end of the kernel
    unless the memory plan gives the same bytes to something later. `alignment` (bytes) is 1024 where `group_mma` reads it."""

    offset: int = 0
    alignment: int = 128

    def verify(self) -> None:
        _require(isinstance(self.result.type, SharedType), self, "the result is a shared buffer")
        _require(self.alignment in (128, 1024), self, "buffers are aligned to 128 or 1024 bytes")
        _require(self.offset % self.alignment == 0, self, f"the offset is a multiple of {self.alignment} bytes")


@dataclass(eq=False, kw_only=True)
class AsyncCopy(Op, opcode="async_copy", effect=Effect.READ):
    """Start copying a box of a tensor into one stage. Operands: tensor, buffer, stage (i32), one offset per tensor axis.

    The box spans the buffer's columns on the last tensor axis, its rows on `row_axis` (counted from the end, -2 or less), and
    one element on the others. Each thread copies `vector` bytes at a time (4, 8 or 16), to which addresses are aligned. With
    `pad`, elements outside the tensor read as zero; with `whole`, the tensor's rows end where a copy does.
    """

    vector: int
    pad: bool = False
    whole: bool = False
    row_axis: int = -2
    unsafe: int | None = None

    @property
    def source(self) -> Value:
        return self.operands[0]

    @property
    def buffer(self) -> Value:
        return self.operands[1]

    @property
    def stage(self) -> Value:
        return self.operands[2]

    @property
    def offsets(self) -> list[Value]:
        return self.operands[3:]

    def verify(self) -> None:
        _require(isinstance(self.source.type, TensorType), self, "the first operand is a tensor")
        _require(self.source.tensor.dtype == self.buffer.shared.dtype, self, "tensor and buffer share a dtype")
        _require(self.stage.type == TileType(i32), self, "the stage is an i32 scalar")
        _require(len(self.offsets) == self.source.tensor.rank >= 2, self, "one offset per tensor axis, at least two")
        _require(-self.source.tensor.rank <= self.row_axis <= -2, self, "the rows lie on an axis before the last")
        _require(self.vector in (4, 8, 16), self, "a copy moves 4, 8 or 16 bytes")
        row_bytes = self.buffer.shared.shape[1] * self.buffer.shared.dtype.bytes
        _require(row_bytes % 16 == 0, self, "a row is whole 16-byte chunks")


@dataclass(eq=False, kw_only=True)
class CommitCopies(Op, opcode="commit_copies", effect=Effect.SHARED):
    """End the group of copies started since the last commit (it may be empty). No operands."""


@dataclass(eq=False, kw_only=True)
class WaitCopies(Op, opcode="wait_copies", effect=Effect.SHARED):
    """Wait until at most `pending` groups are unfinished, then a block barrier. No operands. With `matrices`, what arrived is
    there for `group_mma` too, which reads shared memory through a proxy of its own (PTX ISA, "Async proxy")."""

    pending: int
    matrices: bool = False


@dataclass(eq=False, kw_only=True)
class BlockBarrier(Op, opcode="block_barrier", effect=Effect.SHARED):
    """Wait for all threads of the block. No operands."""


@dataclass(eq=False, kw_only=True)
class SharedLoad(Op, opcode="shared_load", effect=Effect.SHARED):
    """Read an operand of `mma` from a stage: the box of the result's shape at (`row`, `column`) of the matrix, or of its
    transpose if `transposed`. Operands: buffer, stage (i32)."""

    row: int = 0
    column: int = 0
    transposed: bool = False

    @property
    def buffer(self) -> Value:
        return self.operands[0]

    @property
    def stage(self) -> Value:
        return self.operands[1]

    def verify(self) -> None:
        shape, tile = self.buffer.shared.shape, self.result.tile
        rows, columns = (shape[1], shape[0]) if self.transposed else shape
        _require(tile.rank == 2 and tile.dtype == self.buffer.shared.dtype, self, "the result is a matrix of the dtype")
        _require(self.row + tile.shape[0] <= rows and self.column + tile.shape[1] <= columns, self, "the box lies inside")


@dataclass(eq=False, kw_only=True)
class GroupMma(Op, opcode="group_mma", effect=Effect.SHARED):
    """Start `acc + a @ b.T` on the tensor cores, both matrices whole and in shared memory (PTX ISA, `wgmma.mma_async`).
    Operands: buffer of a, stage (i32), buffer of b, stage (i32), acc. Neither stage may change, and nothing but another product
    may use the result, until a `wait_mma` has let it through."""

    def verify(self) -> None:
        left, right, tile = self.operands[0].shared, self.operands[2].shared, self.result.tile
        _require(left.dtype == right.dtype and left.dtype.bits == 16, self, "matrices of one 16-bit dtype")
        _require(left.shape[1] == right.shape[1], self, "matrices of one depth")
        _require(tile.shape == (left.shape[0], right.shape[0]), self, "the result is the product's")
        _require(self.operands[4].type == self.result.type, self, "the accumulator has the result's type")
        _require(self.operands[1].type == self.operands[3].type == TileType(i32), self, "the stages are i32 scalars")


@dataclass(eq=False, kw_only=True)
class WaitMma(Op, opcode="wait_mma", effect=Effect.SHARED):
    """The operand, once at most `pending` products are unfinished."""

    pending: int

    def verify(self) -> None:
        _require(self.pending >= 0, self, f"{self.pending} products cannot be pending")
        _require(self.operands[0].type == self.result.type, self, "the result has the operand's type")


@dataclass(eq=False, kw_only=True)
class Relayout(Op, opcode="relayout"):
    """The same tile held as the result's layout says; free where every thread already holds what it needs."""

    def verify(self) -> None:
        _require(self.operands[0].type == self.result.type, self, "the result has the operand's type")


@dataclass(eq=False, kw_only=True)
class Part(Op, opcode="part"):
    """The box of the result's shape at (`row`, `column`) of a matrix; every thread must hold the elements it needs."""

    row: int = 0
    column: int = 0

    def verify(self) -> None:
        source, tile = self.operands[0].tile, self.result.tile
        _require(source.rank == 2 and tile.rank == 2 and source.dtype == tile.dtype, self, "matrices of one dtype")
        rows, columns = (
            first >= 0 and first + size <= extent
            for first, size, extent in zip((self.row, self.column), tile.shape, source.shape, strict=True)
        )
        _require(rows and columns, self, "the box lies inside")
