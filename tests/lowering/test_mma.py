"""Which registers the tensor-core rules pass to which instruction, and which elements a staged copy accesses."""

from __future__ import annotations

import pytest
from thread_machine import Thread

from tilec.atoms import mma_sync
from tilec.atoms.mma_sync import WarpGrid
from tilec.ir.core import Block, Value
from tilec.ir.expr import sym
from tilec.ir.layouts.layout import Layout, register_map
from tilec.ir.ops import Mma
from tilec.ir.ops.staging_ops import AsyncCopy
from tilec.ir.types import DType, SharedType, TensorType, TileType, bf16, f8e4m3, f32, i8, i32, i64
from tilec.lowering import products, staging
from tilec.lowering.context import storage
from tilec.mlir import types as mlir
from tilec.mlir.types import GLOBAL, SHARED, SsaValue


class Context(Thread):
    """The `Context` of one thread, with tensors named as the test binds them."""

    def __init__(self, threads: int, thread: int = 0) -> None:
        super().__init__()
        self.threads, self.index = threads, thread
        self.tiles: dict[Value, list[SsaValue]] = {}
        self.extents: dict[int, int] = {}
        self.strides: dict[int, int] = {}

    def registers(self, value: Value) -> list[SsaValue]:
        return self.tiles[value]

    def assign(self, value: Value, registers: list[SsaValue]) -> None:
        self.tiles[value] = registers

    def pointer(self, tensor: Value) -> SsaValue:
        return self.tiles[tensor][0]

    def extent(self, tensor: Value, axis: int) -> SsaValue:
        return self.bind(self.extents[axis])

    def stride(self, tensor: Value, axis: int) -> SsaValue:
        return self.bind(self.strides[axis], mlir.i64)

    def thread(self) -> SsaValue:
        return self.bind(self.index)

    def shared_base(self) -> SsaValue:
        return self.bind(0, SHARED)


def origin(layout: Layout, registers: list[str], fragment: Layout) -> tuple[int, int]:
    """Origin in the tile of the fragment in these registers; fails unless they are one fragment in order."""
    starts: set[tuple[int, int]] = set()
    for position, name in enumerate(registers):
        row, column = layout.coordinates(int(name), 0, 0)
        row_in, column_in = fragment.coordinates(position, 0, 0)
        starts.add((row - row_in, column - column_in))
    (start,) = starts
    return start


def names(values: list[SsaValue]) -> list[str]:
    """The names of elements, including those packed in pairs into one value."""
    return " ".join(value.name for value in values).split()


@pytest.mark.parametrize("grid", [WarpGrid(1, 1), WarpGrid(2, 2), WarpGrid(1, 4)], ids=str)
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("dtype", [bf16, i8, f8e4m3, f32], ids=str)
def test_products_cover_the_tile_once(dtype: DType, grid: WarpGrid, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, columns, single_warp, step = 64, 64, WarpGrid(1, 1), 32 // dtype.bytes
    depth, sums = steps * step, i32 if dtype == i8 else f32
    values = [
        Value(TileType(dtype, (rows, depth))),
        Value(TileType(dtype, (depth, columns))),
        Value(TileType(sums, (rows, columns))),
    ]
    op = Mma(operands=values)
    op.define(TileType(sums, (rows, columns)))
    op.verify()
    layouts = (
        mma_sync.operand_a(rows, depth, grid, dtype),
        mma_sync.operand_b(depth, columns, grid, dtype),
        mma_sync.accumulator(rows, columns, grid),
    )
    fragments = (
        mma_sync.operand_a(16, step, single_warp, dtype),
        mma_sync.operand_b(step, 8, single_warp, dtype),
        mma_sync.accumulator(16, 8, single_warp),
    )
    multiplied: list[tuple[int, int, int]] = []

    def words(out: object, registers: list[SsaValue], dtype: DType) -> list[SsaValue]:
        count = 4 // dtype.bytes
        groups = [registers[first : first + count] for first in range(0, len(registers), count)]
        return [SsaValue(" ".join(value.name for value in group), mlir.i32) for group in groups]

    def multiply(
        out: object, a: list[SsaValue], b: list[SsaValue], c: list[SsaValue], dtype: DType, other: DType
    ) -> list[SsaValue]:
        assert (len(a), len(b), len(c)) == (4, 2, 4) and dtype == other
        a_origin = origin(layouts[0], names(a), fragments[0])
        b_origin = origin(layouts[1], names(b), fragments[1])
        c_origin = origin(layouts[2], names(c), fragments[2])
        assert (a_origin[0], b_origin[1], a_origin[1]) == (*c_origin, b_origin[0])
        multiplied.append((*c_origin, a_origin[1]))
        return c

    monkeypatch.setattr(mma_sync, "words", words)
    monkeypatch.setattr(mma_sync, "multiply", multiply)
    context = Context(32 * grid.count)
    context.multiplies_f8 = True
    for value, layout in zip(values, layouts, strict=True):
        context.assign(value, [SsaValue(str(i), storage(value.tile.dtype)) for i in range(layout.num_registers)])
    products.lower_mma(context, op)
    expected = (rows // grid.rows // 16) * (columns // grid.columns // 8) * steps
    assert len(multiplied) == len(set(multiplied)) == expected
    assert context.registers(op.result) == context.registers(values[2])


@pytest.mark.parametrize("whole", [False, True], ids=["any", "whole"])
@pytest.mark.parametrize("wide", [False, True], ids=["i32", "i64"])
@pytest.mark.parametrize(("batch", "row", "column"), [(0, 0, 0), (2, 8, 16), (1, 20, 32), (3, 0, 0), (-1, 0, 0)])
def test_copy_of_a_box_reads_these_elements(batch: int, row: int, column: int, wide: bool, whole: bool) -> None:
    extents, strides, threads = (3, 30, 40), (1200 + 80, 40, 1), 64
    type = SharedType(bf16, (16, 32), 3)
    tensor = Value(TensorType(bf16, (sym("B"), sym("M"), sym("K"))))
    offset_type = TileType(i64 if wide else i32)
    offsets = [Value(offset_type) for _ in range(3)]
    buffer, stage = Value(type, owner=Block()), Value(TileType(i32))
    op = AsyncCopy(operands=[tensor, buffer, stage, *offsets], vector=16, pad=True, whole=whole)
    op.verify()
    memory: dict[int, int] = {}
    for index in range(threads):
        context = Context(threads, index)
        context.extents, context.strides = dict(enumerate(extents)), dict(enumerate(strides))
        context.assign(tensor, [context.bind(1 << 20, GLOBAL)])
        context.assign(buffer, [context.bind(4096, SHARED)])
        context.assign(stage, [context.bind(2)])
        for value, position in zip(offsets, (batch, row, column), strict=True):
            context.assign(value, [context.bind(position, mlir.i64 if wide else mlir.i32)])
        staging.lower_async_copy(context, op)
        for target, source, size in context.copies:
            memory.update({target + i: source + i for i in range(size)})
    start = 4096 + 2 * type.stage_bytes
    expected: dict[int, int] = {}
    for r in range(16):
        for c in range(32):
            if 0 <= batch < extents[0] and row + r < extents[1] and column + c < extents[2]:
                position = (1 << 20) + 2 * (batch * strides[0] + (row + r) * strides[1] + column + c)
                expected.update({start + type.offset(r, c) + i: position + i for i in range(2)})
    assert memory == expected


def test_warps_divide_a_product_so_that_they_read_least() -> None:
    assert mma_sync.choose_warps(128, 64, 4) == WarpGrid(2, 2)
    assert mma_sync.choose_warps(128, 64, 128) is None


def test_an_accumulator_is_a_left_operand_in_place() -> None:
    grid = WarpGrid(4, 1)
    assert register_map(mma_sync.accumulator(64, 32, grid), mma_sync.operand_a(64, 32, grid)) == tuple(range(16))
    split = WarpGrid(2, 2)
    assert register_map(mma_sync.accumulator(64, 32, split), mma_sync.operand_a(64, 32, split)) is None
