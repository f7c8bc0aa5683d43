"""Operations on shared memory and on layouts, made by passes and never by a kernel's author.

A buffer has one matrix for each stage of a ring, whose operations (`tilec.ir.ops.sync_ops`) say when a stage may be written and
read. Scratch is memory through which threads pass elements to each other: stores, a barrier, loads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilec.ir.core import Effect, Op, Value
from tilec.ir.ops import Load
from tilec.ir.ops.values import sum_dtype
from tilec.ir.types import DType, RingType, ScratchType, SharedType, TensorType, TileType, f32, i32
from tilec.target.families import family_named

SUB_TILE_ROWS: Final = 8
"""The rows of a sub-tile are a multiple of this, the height of a swizzle atom, so that it is laid out like a matrix of
its own."""


@dataclass(eq=False, kw_only=True)
class SharedAlloc(Op, opcode="shared_alloc"):
    """Allocates dynamic shared memory at byte `offset`, up to the matching `shared_free`: with a ring as operand, one matrix
    for each of its stages; without operands, scratch. `alignment` (bytes) is 1024 for buffers that `group_mma` reads or
    `tensor_copy` fills."""

    others = (RingType,)
    makes_tiles = False

    offset: int = 0
    alignment: int = 128

    @property
    def bytes(self) -> int:
        """Size of the allocation."""
        type_ = self.result.type
        return type_.bytes if isinstance(type_, SharedType | ScratchType) else 0

    def verify(self) -> None:
        self.require(self.offset >= 0, f"{self.offset} lies before shared memory")
        type_ = self.result.type
        self.require(self.bytes > 0, f"{type_} is not a shared buffer")
        if isinstance(type_, SharedType):
            self.require(min(*type_.shape, type_.stages, type_.swizzle_atoms) >= 1, f"{type_} is not a shared buffer")
            self.require(type_.shape[1] % type_.swizzle_atoms == 0, f"the swizzle atoms of {type_} must have equal widths")
            row_bytes = type_.width * type_.dtype.bytes
            self.require(row_bytes % 16 == 0, f"rows of {type_} are not whole 16-byte chunks")
            self.require(len(self.operands) == 1, "a buffer is that of a ring")
            self.require(self.operands[0].type == RingType(self.result.shared.stages), "its ring has as many stages")
        else:
            self.require(not self.operands, "scratch has no ring")
        self.require(self.alignment in (128, 1024), "buffers are aligned to 128 or 1024 bytes")
        self.require(self.offset % self.alignment == 0, f"the offset is a multiple of {self.alignment} bytes")


@dataclass(eq=False, kw_only=True)
class StageCopy(Op):
    """Base of operations that start copying a box of a tensor into one stage. Operands: tensor, buffer, stage (i32), one offset
    per tensor axis. The box spans the buffer's columns on the last tensor axis, its rows on `row_axis` (counted from the end,
    -2 or less), and one element on the other axes. With `sub_tiles` > 1, the rows are split into that many equal sub-tiles, one
    after the other, for `sub_tiles` consecutive elements on `sub_axis`, the axis `gap` axes before `row_axis`."""

    leading = (TensorType, SharedType)
    num_results = 0

    row_axis: int = -2
    sub_tiles: int = 1
    gap: int = 1
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

    @property
    def sub_axis(self) -> int:
        """The tensor axis that sub-tiles lie on, counted from the end."""
        return self.row_axis - self.gap

    def verify(self) -> None:
        self.require(isinstance(self.source.type, TensorType), "the first operand is a tensor")
        self.require(self.source.tensor.dtype == self.buffer.shared.dtype, "tensor and buffer share a dtype")
        self.require(self.stage.type == TileType(i32), "the stage is an i32 scalar")
        self.require(len(self.offsets) == self.source.tensor.rank >= 2, "one offset per tensor axis, at least two")
        self.require(-self.source.tensor.rank <= self.row_axis <= -2, "the rows lie on an axis before the last")
        self.require(
            self.sub_tiles == 1 or (self.gap > 0 and self.sub_axis >= -self.source.tensor.rank),
            "sub-tiles lie on an axis before the rows",
        )
        rows, remainder = divmod(self.buffer.shared.shape[0], max(1, self.sub_tiles))
        equal_sub_tiles = self.sub_tiles == 1 or (self.sub_tiles > 1 and remainder == 0 and rows % SUB_TILE_ROWS == 0)
        self.require(equal_sub_tiles, f"sub-tiles have equally many rows, a multiple of {SUB_TILE_ROWS}")
        row_bytes = self.buffer.shared.shape[1] * self.buffer.shared.dtype.bytes
        self.require(row_bytes % 16 == 0, "a row is whole 16-byte chunks")

    def touched(self) -> tuple[tuple[Value, Effect], ...]:
        return ((self.source, Effect.READ), (self.buffer, Effect.WRITE))


@dataclass(eq=False, kw_only=True)
class AsyncCopy(StageCopy, opcode="async_copy", effect=Effect.READ):
    """A copy by all threads into a `groups` ring (PTX ISA, `cp.async`). Each thread copies `vector` bytes at a time (4, 8 or
    16), to which its addresses are aligned. With `pad`, elements outside the tensor read as zero. `whole` states that the
    tensor's rows end at a multiple of `vector` bytes, so that no vector crosses the end of a row."""

    vector: int
    pad: bool = False
    whole: bool = False

    def verify(self) -> None:
        super().verify()
        self.require(self.vector in (4, 8, 16), "a copy moves 4, 8 or 16 bytes")
        self.require(self.buffer.shared.swizzle_atoms == 1, "threads copy whole rows")


@dataclass(eq=False, kw_only=True)
class TensorCopy(StageCopy, opcode="tensor_copy", effect=Effect.READ):
    """A copy through a tensor map, started by one thread, into an `mbarriers` ring whose stage counts its bytes (PTX ISA,
    `cp.async.bulk.tensor`). Elements outside the tensor read as zero. With `unfilled`, rows outside the tensor are not filled:
    they read as any value."""

    unfilled: bool = False

    def verify(self) -> None:
        super().verify()
        self.require(all(value.type == TileType(i32) for value in self.offsets), "coordinates are i32 scalars")
        self.require(self.sub_tiles == 1 or not self.unfilled, "rows are unfilled in one sub-tile only")


@dataclass(eq=False, kw_only=True)
class SharedLoad(Op, opcode="shared_load", effect=Effect.SHARED):
    """Read an operand of `mma` from a stage: the box of the result's shape at (`row`, `column`) of the matrix, or of its
    transpose with `transposed`. Operands: buffer, stage (i32)."""

    num_operands = 2
    leading = (SharedType,)

    row: int = 0
    column: int = 0
    transposed: bool = False

    @property
    def buffer(self) -> Value:
        return self.operands[0]

    @property
    def stage(self) -> Value:
        return self.operands[1]

    def is_of(self, ring: Value) -> bool:
        """Whether it reads a stage of a ring."""
        return isinstance(self.buffer.owner, SharedAlloc) and ring in self.buffer.owner.operands

    def verify(self) -> None:
        shape, tile = self.buffer.shared.shape, self.result.tile
        rows, columns = (shape[1], shape[0]) if self.transposed else shape
        self.require(min(self.row, self.column) >= 0, "the box lies before its matrix")
        self.require(tile.rank == 2 and tile.dtype == self.buffer.shared.dtype, "the result is a matrix of the dtype")
        self.require(self.row + tile.shape[0] <= rows and self.column + tile.shape[1] <= columns, "the box lies inside")

    def touched(self) -> tuple[tuple[Value, Effect], ...]:
        return ((self.buffer, Effect.READ),)


@dataclass(eq=False, kw_only=True)
class LoadAhead(Load, opcode="load_ahead", effect=Effect.READ):
    """A load of a later iteration, made while products run: they leave a thread few registers, so that each address is computed
    where it is used, and not for both ways that a padded load has."""


@dataclass(eq=False, kw_only=True)
class GroupProduct(Op):
    """Base of asynchronous products, which instructions of `family` start on the tensor cores. Until a `wait_mma` covers the
    product, the stages it reads must not change and only another product may use the result."""

    family: str

    @property
    def reads(self) -> tuple[tuple[Value, Value], ...]:
        """(buffer, stage) of each matrix in shared memory."""
        pairs = zip(self.operands, self.operands[1:], strict=False)
        return tuple((buffer, stage) for buffer, stage in pairs if isinstance(buffer.type, SharedType))

    def verify(self) -> None:
        require_family(self, self.family)

    def verify_dtypes(self, left: SharedType, right: SharedType, sums: DType) -> None:
        """Rules of the dtypes of matrices in shared memory and of the sums of their products."""
        family = family_named(self.family)
        known = family is not None and family.takes(left.dtype) and family.takes(right.dtype)
        self.require(known, f"`{self.family}` has no products of {left.dtype} and {right.dtype}")
        found = sum_dtype(left.dtype, right.dtype)
        self.require(found == sums, f"there are no products of {left.dtype} and {right.dtype} with sums in {sums}")

    def touched(self) -> tuple[tuple[Value, Effect], ...]:
        return tuple((buffer, Effect.READ) for buffer, _ in self.reads)


def require_family(op: Op, name: str) -> None:
    """VerifyError unless instructions of that family run asynchronously."""
    family = family_named(name)
    op.require(family is not None and family.runs_ahead, f"no asynchronous products of a family `{name}`")


@dataclass(eq=False, kw_only=True)
class GroupMma(GroupProduct, opcode="group_mma", effect=Effect.SHARED):
    """Start `acc + a @ b.T`, both matrices whole and in shared memory; with `mn_major`, `acc + a @ b`. Operands: buffer of a,
    stage (i32), buffer of b, stage (i32), acc."""

    num_operands = 5
    leading = (SharedType, TileType, SharedType)
    mn_major: bool = False

    @property
    def right_shape(self) -> tuple[int, int]:
        """Columns of the product, and its depth."""
        first, second = self.operands[2].shared.shape
        return (second, first) if self.mn_major else (first, second)

    def verify(self) -> None:
        super().verify()
        left, right, tile = self.operands[0].shared, self.operands[2].shared, self.result.tile
        self.verify_dtypes(left, right, tile.dtype)
        self.require(not self.mn_major or right.dtype.bits == 16, "rows along M or N are of 16-bit elements")
        columns, depth = self.right_shape
        self.require(left.shape[1] == depth, "matrices of one depth")
        self.require(tile.shape == (left.shape[0], columns), "the result is the product's")
        self.require(self.operands[4].type == self.result.type, "the accumulator has the result's type")
        self.require(self.operands[1].type == self.operands[3].type == TileType(i32), "the stages are i32 scalars")


@dataclass(eq=False, kw_only=True)
class PackPairs(Op, opcode="pack_pairs", effect=Effect.SHARED):
    """The elements of an f32 matrix, rounded as `cast` does, two neighbors of a row in one i32: operand A of
    `register_group_mma`. Passes do not move it, because an unfinished product may still read the registers."""

    num_operands = 1

    family: str
    dtype: str

    def verify(self) -> None:
        require_family(self, self.family)
        source, tile = self.operands[0].tile, self.result.tile
        self.require(self.dtype in ("bf16", "f16"), "elements of 16 bits")
        self.require(source.dtype == f32 and source.rank == 2 and source.shape[1] % 2 == 0, "the operand is a matrix of f32")
        self.require(tile == TileType(i32, (source.shape[0], source.shape[1] // 2)), "the result has a column for two")


@dataclass(eq=False, kw_only=True)
class RegisterGroupMma(GroupProduct, opcode="register_group_mma", effect=Effect.SHARED):
    """Start `acc + a @ b`, b whole and in shared memory, a packed (`pack_pairs`) and register-resident, in the layout of a
    product's result; without `mn_major`, `acc + a @ b.T`. Operands: a, buffer of b, stage (i32), acc."""

    num_operands = 4
    leading = (TileType, SharedType)
    mn_major: bool = True

    @property
    def right_shape(self) -> tuple[int, int]:
        """Columns of the product, and its depth."""
        first, second = self.operands[1].shared.shape
        return (second, first) if self.mn_major else (first, second)

    def verify(self) -> None:
        super().verify()
        left, right, tile = self.operands[0].tile, self.operands[1].shared, self.result.tile
        self.require(left.dtype == i32 and right.dtype.bits == 16, "packed elements, and a matrix of 16 bits")
        columns, depth = self.right_shape
        self.require(left.rank == 2 and 2 * left.shape[1] == depth, "matrices of one depth")
        self.require(depth % 16 == 0, "the depth is a multiple of 16")
        self.require(tile.shape == (left.shape[0], columns), "the result is the product's")
        self.require(self.operands[3].type == self.result.type, "the accumulator has the result's type")
        self.require(self.operands[2].type == TileType(i32), "the stage is an i32 scalar")


@dataclass(eq=False, kw_only=True)
class WaitMma(Op, opcode="wait_mma", effect=Effect.SHARED):
    """The first operand, once at most `pending` products of `family` are unfinished. An optional second operand must be
    computed before the wait, so that its computation overlaps the products."""

    num_operands = None

    family: str
    pending: int

    def verify(self) -> None:
        require_family(self, self.family)
        self.require(1 <= len(self.operands) <= 2, f"{len(self.operands)} operands instead of 1 or 2")
        self.require(self.pending >= 0, f"{self.pending} products cannot be pending")
        self.require(self.operands[0].type == self.result.type, "the result has the operand's type")


@dataclass(eq=False, kw_only=True)
class Relayout(Op, opcode="relayout"):
    """The same tile in the result's layout. If a thread needs elements of another thread, a pass replaces the operation by
    stores to and loads from scratch (`shared_conversions`); the remaining ones only rename registers."""

    num_operands = 1

    def verify(self) -> None:
        self.require(self.operands[0].type == self.result.type, "the result has the operand's type")


@dataclass(eq=False, kw_only=True)
class Part(Op, opcode="part"):
    """The box of the result's shape at (`row`, `column`) of a matrix; every thread already has the elements it needs."""

    num_operands = 1

    row: int = 0
    column: int = 0

    def verify(self) -> None:
        source, tile = self.operands[0].tile, self.result.tile
        self.require(source.rank == 2 and tile.rank == 2 and source.dtype == tile.dtype, "matrices of one dtype")
        rows, columns = (
            first >= 0 and first + size <= extent
            for first, size, extent in zip((self.row, self.column), tile.shape, source.shape, strict=True)
        )
        self.require(rows and columns, "the box lies inside")


@dataclass(eq=False, kw_only=True)
class ScratchStore(Op, opcode="scratch_store", effect=Effect.SHARED):
    """Store a tile into scratch; if several threads have an element, one of them stores it. Operands: scratch, tile. `steps`:
    distance in elements between neighboring coordinates of each axis."""

    num_operands = 2
    leading = (ScratchType,)
    num_results = 0

    steps: tuple[int, ...]

    def verify(self) -> None:
        _verify_scratch_tile(self, self.operands[0], self.operands[1].tile, self.steps)

    def touched(self) -> tuple[tuple[Value, Effect], ...]:
        return ((self.operands[0], Effect.WRITE),)


@dataclass(eq=False, kw_only=True)
class ScratchStoreOwned(ScratchStore, opcode="scratch_store_owned", effect=Effect.SHARED):
    """`scratch_store` by the first of the threads that have an element alone: the old values of atomics, which no other has."""


@dataclass(eq=False, kw_only=True)
class ScratchLoad(Op, opcode="scratch_load", effect=Effect.SHARED):
    """Load a tile from scratch, each thread the elements that the layout assigns to it. Operand: scratch. `steps` as in
    `scratch_store`."""

    num_operands = 1
    leading = (ScratchType,)

    steps: tuple[int, ...]

    def verify(self) -> None:
        _verify_scratch_tile(self, self.operands[0], self.result.tile, self.steps)

    def touched(self) -> tuple[tuple[Value, Effect], ...]:
        return ((self.operands[0], Effect.READ),)


def _verify_scratch_tile(op: Op, scratch: Value, tile: TileType, steps: tuple[int, ...]) -> None:
    op.require(isinstance(scratch.type, ScratchType), "the first operand is scratch")
    op.require(len(steps) == tile.rank and min(steps, default=1) >= 1, "a step for each axis")
    last = sum(step * (extent - 1) for step, extent in zip(steps, tile.shape, strict=True))
    op.require((last + 1) * tile.dtype.bytes <= scratch.scratch.bytes, "the tile fits the scratch")
