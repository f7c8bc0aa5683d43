"""Which registers the tensor-core rules feed to which instruction, and which elements a staged copy touches."""

from __future__ import annotations

import pytest
from thread_machine import Thread

from tilec.ir import mma_layouts
from tilec.ir.core import Block, Value
from tilec.ir.expr import sym
from tilec.ir.layout import Layout, register_map
from tilec.ir.mma_layouts import WarpGrid
from tilec.ir.ops import Mma
from tilec.ir.ops_staging import AsyncCopy
from tilec.ir.types import DType, SharedType, TensorType, TileType, bf16, f32, i32, i64
from tilec.lowering import mma, tensor_core


class Context(Thread):
    """A `TileContext` of one thread whose tensors are named by what the test binds."""

    def __init__(self, threads: int, thread: int = 0) -> None:
        super().__init__()
        self.threads, self.index = threads, thread
        self.tiles: dict[Value, list[str]] = {}
        self.extents: dict[int, int] = {}
        self.strides: dict[int, int] = {}

    def registers(self, value: Value) -> list[str]:
        return self.tiles[value]

    def assign(self, value: Value, registers: list[str]) -> None:
        self.tiles[value] = registers

    def pointer(self, tensor: Value) -> str:
        return self.tiles[tensor][0]

    def extent(self, tensor: Value, axis: int) -> str:
        return self.bind(self.extents[axis])

    def stride(self, tensor: Value, axis: int) -> str:
        return self.bind(self.strides[axis])

    def thread(self) -> str:
        return self.bind(self.index)

    def shared_base(self) -> str:
        return self.bind(0)


def origin(layout: Layout, registers: list[str], fragment: Layout) -> tuple[int, int]:
    """Where the fragment made of these registers lies in the tile; fails unless they are one fragment in order."""
    starts: set[tuple[int, int]] = set()
    for position, name in enumerate(registers):
        row, column = layout.coordinates(int(name), 0, 0)
        row_in, column_in = fragment.coordinates(position, 0, 0)
        starts.add((row - row_in, column - column_in))
    (start,) = starts
    return start


@pytest.mark.parametrize("grid", [WarpGrid(1, 1), WarpGrid(2, 2), WarpGrid(1, 4)], ids=str)
@pytest.mark.parametrize("depth", [16, 48])
def test_products_cover_the_tile_once(grid: WarpGrid, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, columns, one = 64, 64, WarpGrid(1, 1)
    values = [
        Value(TileType(bf16, (rows, depth))),
        Value(TileType(bf16, (depth, columns))),
        Value(TileType(f32, (rows, columns))),
    ]
    op = Mma(operands=values)
    op.define(TileType(f32, (rows, columns)))
    layouts = (
        mma_layouts.operand_a(rows, depth, grid),
        mma_layouts.operand_b(depth, columns, grid),
        mma_layouts.accumulator(rows, columns, grid),
    )
    fragments = mma_layouts.operand_a(16, 16, one), mma_layouts.operand_b(16, 8, one), mma_layouts.accumulator(16, 8, one)
    done: list[tuple[int, int, int]] = []

    def multiply(out: object, a: list[str], b: list[str], c: list[str], dtype: DType) -> list[str]:
        a_at = origin(layouts[0], " ".join(a).split(), fragments[0])
        b_at = origin(layouts[1], " ".join(b).split(), fragments[1])
        c_at = origin(layouts[2], c, fragments[2])
        assert (a_at[0], b_at[1], a_at[1]) == (*c_at, b_at[0])
        done.append((*c_at, a_at[1]))
        return c

    monkeypatch.setattr(tensor_core, "pack", lambda out, low, high, dtype: f"{low} {high}")
    monkeypatch.setattr(tensor_core, "multiply", multiply)
    context = Context(32 * grid.count)
    for value, layout in zip(values, layouts, strict=True):
        context.assign(value, [str(i) for i in range(layout.num_registers)])
    mma.lower_mma(context, op)
    expected = (rows // grid.rows // 16) * (columns // grid.columns // 8) * (depth // 16)
    assert len(done) == len(set(done)) == expected
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
        context.assign(tensor, [context.bind(1 << 20)])
        context.assign(buffer, [context.bind(4096)])
        context.assign(stage, [context.bind(2)])
        for value, at in zip(offsets, (batch, row, column), strict=True):
            context.assign(value, [context.bind(at)])
        mma.lower_async_copy(context, op)
        for target, source, size in context.copies:
            memory.update({target + i: source + i for i in range(size)})
    start = 4096 + 2 * type.stage_bytes
    expected: dict[int, int] = {}
    for r in range(16):
        for c in range(32):
            if 0 <= batch < extents[0] and row + r < extents[1] and column + c < extents[2]:
                at = (1 << 20) + 2 * (batch * strides[0] + (row + r) * strides[1] + column + c)
                expected.update({start + type.offset(r, c) + i: at + i for i in range(2)})
    assert memory == expected


def test_layouts_of_a_product() -> None:
    values = [Value(TileType(bf16, (128, 32))), Value(TileType(bf16, (32, 64))), Value(TileType(f32, (128, 64)))]
    op = Mma(operands=values)
    op.define(TileType(f32, (128, 64)))
    grid = mma_layouts.choose_warps(128, 64, 4)
    assert grid == WarpGrid(2, 2)
    a, b, c = mma_layouts.operand_a(128, 32, grid), mma_layouts.operand_b(32, 64, grid), mma_layouts.accumulator(128, 64, grid)
    assert mma_layouts.layouts_of(op, 4) == (a, b, c)
    assert mma_layouts.layouts_of(op, 128) is None


def test_an_accumulator_is_a_left_operand_in_place() -> None:
    grid = WarpGrid(4, 1)
    assert register_map(mma_layouts.accumulator(64, 32, grid), mma_layouts.operand_a(64, 32, grid)) == tuple(range(16))
    split = WarpGrid(2, 2)
    assert register_map(mma_layouts.accumulator(64, 32, split), mma_layouts.operand_a(64, 32, split)) is None
