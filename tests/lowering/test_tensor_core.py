"""The index maps of the tensor-core path, executed thread by thread and compared with the tables of the PTX ISA."""

from __future__ import annotations

import itertools

import pytest
from thread_machine import Thread

from tilec.atoms import cp_async, ldmatrix, mma_sync
from tilec.atoms.mma_sync import WarpGrid
from tilec.codegen import to_ptx
from tilec.ir.layouts.layout import Layout
from tilec.ir.types import SharedType, bf16, f16
from tilec.lowering.positions import Position
from tilec.mlir.builder import Builder
from tilec.mlir.module import Argument, kernel_module
from tilec.mlir.types import GLOBAL, SHARED, SsaValue, i64
from tilec.target.targets import MAIN_TARGETS, Target

GRIDS = [WarpGrid(1, 1), WarpGrid(2, 2), WarpGrid(4, 1), WarpGrid(1, 4)]


def fill(type: SharedType, threads: int, vector: int, row_bytes: int) -> dict[int, int]:
    """Shared memory after an unpadded copy: byte offset to byte address in the tensor."""
    memory: dict[int, int] = {}
    for index in range(threads):
        thread = Thread()
        box = cp_async.Box(thread.bind(0, GLOBAL), thread.bind(row_bytes, i64))
        cp_async.async_copy(thread, box, type, thread.bind(0, SHARED), thread.bind(index), threads, vector)
        for target, source, size in thread.copies:
            assert target % vector == 0 and size == vector
            for byte in range(size):
                assert target + byte not in memory
                memory[target + byte] = source + byte
    return memory


@pytest.mark.parametrize("vector", [4, 8, 16])
@pytest.mark.parametrize(("shape", "threads"), [((64, 64), 128), ((32, 32), 64), ((16, 48), 128), ((24, 80), 64), ((8, 8), 32)])
def test_copy_puts_each_element_where_loads_look(shape: tuple[int, int], threads: int, vector: int) -> None:
    type = SharedType(bf16, shape, 2)
    row_bytes = 1000
    memory = fill(type, threads, vector, row_bytes)
    assert len(memory) == shape[0] * shape[1] * 2
    for row, column in itertools.product(range(shape[0]), range(shape[1])):
        assert memory[type.offset(row, column)] == row * row_bytes + column * 2


@pytest.mark.parametrize(("row", "column"), [(0, 0), (56, 48), (-8, 0), (60, 96), (3, -16), (0, 64)])
def test_padded_copy_reads_only_in_bounds(row: int, column: int) -> None:
    type, extents, threads = SharedType(bf16, (16, 64), 1), (61, 75), 64
    copied = 0
    for index in range(threads):
        thread = Thread()
        edges = cp_async.Edges(
            row=Position(thread.bind(row)),
            column=Position(thread.bind(column)),
            row_extent=thread.bind(extents[0]),
            column_extent=thread.bind(extents[1]),
        )
        box = cp_async.Box(thread.bind((row * 80 + column) * 2, GLOBAL), thread.bind(160, i64), edges)
        cp_async.async_copy(thread, box, type, thread.bind(0, SHARED), thread.bind(index), threads, 16)
        for _, source, size in thread.copies:
            tensor_row, tensor_column = source // 160, source % 160 // 2
            if size:
                assert 0 <= tensor_row < extents[0] and tensor_column + size // 2 <= extents[1]
            copied += size // 2
    in_bounds = [
        (r, c) for r in range(row, row + 16) for c in range(column, column + 64) if 0 <= r < extents[0] and 0 <= c < extents[1]
    ]
    assert copied == len(in_bounds)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("step", [0, 16])
def test_matrix_loads_give_the_fragments(side: str, transposed: bool, grid: WarpGrid, step: int) -> None:
    tile = (64, 16) if side == "a" else (16, 64)
    layout = mma_sync.operand_a(*tile, grid) if side == "a" else mma_sync.operand_b(*tile, grid)
    matrix_shape = (64, 32) if side == "a" else (32, 64)
    type = SharedType(bf16, (matrix_shape[1], matrix_shape[0]) if transposed else matrix_shape, 1)
    origin = (0, step) if side == "a" else (step, 0)
    check_fragments(type, layout, grid.count, origin, transposed)


@pytest.mark.parametrize("grid", [WarpGrid(1, 1), WarpGrid(4, 1), WarpGrid(2, 2), WarpGrid(1, 4), WarpGrid(1, 8)], ids=str)
@pytest.mark.parametrize("step", [0, 48, 64, 112])
def test_matrix_loads_find_their_sub_tile(grid: WarpGrid, step: int) -> None:
    """Rows of operand A, and of B in both orders, that are wider than a swizzle span; each of eight warps has half of one."""
    rows = 16 * grid.rows
    along_k = SharedType(bf16, (rows, 128), 1, 2)
    check_fragments(along_k, mma_sync.operand_a(rows, 16, grid), grid.count, (0, step), transposed=False)
    along_k = SharedType(bf16, (256, 128), 1, 2)
    check_fragments(along_k, mma_sync.operand_b(16, 256, grid), grid.count, (step, 0), transposed=True)
    along_n = SharedType(bf16, (128, 256), 1, 4)
    check_fragments(along_n, mma_sync.operand_b(16, 256, grid), grid.count, (step, 0), transposed=False)


def check_fragments(type: SharedType, layout: Layout, warps: int, origin: tuple[int, int], transposed: bool) -> None:
    """Each lane of each warp loads the elements of its layout, at `origin` of the matrix, without conflicts of banks."""
    coordinates_at = {type.offset(r, c): (r, c) for r in range(type.shape[0]) for c in range(type.shape[1])}
    for warp in range(warps):
        lanes: list[Thread] = []
        for lane in range(32):
            thread = Thread()
            stage, lane_name, warp_name = thread.bind(0, SHARED), thread.bind(lane), thread.bind(warp)
            ldmatrix.load_matrices(thread, type, stage, layout, lane_name, warp_name, origin, transposed)
            lanes.append(thread)
        names = {tuple(name for name, _ in thread.matrices) for thread in lanes}
        assert len(names) == 1
        register = 0
        for instruction, (name, _) in enumerate(lanes[0].matrices):
            width, trans = int(name.split(".x")[1][0]), ".trans" in name
            for matrix in range(width):
                rows = [lanes[8 * matrix + i].matrices[instruction][1] for i in range(8)]
                assert len({address % 128 // 16 for address in rows}) == 8
                for lane in range(32):
                    for half in range(2):
                        r, c = (lane % 4 * 2 + half, lane >> 2) if trans else (lane >> 2, lane % 4 * 2 + half)
                        # Row r of the matrix is the 16 bytes at the address of lane r in this group of eight.
                        found = coordinates_at[rows[r]]
                        found = (found[0], found[1] + c)
                        expected = layout.coordinates(register + half, lane, warp)
                        expected = (expected[0] + origin[0], expected[1] + origin[1])
                        assert found == (expected[::-1] if transposed else expected)
                register += 2
        assert register == layout.num_registers


@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize("target", MAIN_TARGETS, ids=str)
def test_text_becomes_the_instructions_on_each_target(target: Target, dtype: object) -> None:
    assert dtype in (bf16, f16)
    element = bf16 if dtype == bf16 else f16
    out, grid = Builder(), WarpGrid(1, 1)
    x, y = SsaValue("%x", GLOBAL), SsaValue("%y", GLOBAL)
    type = SharedType(element, (16, 64), 2)
    base, thread = out.dynamic_shared(), out.special_register("tid.x")
    zero, size = out.constant(0), out.constant(128, i64)
    for whole in (False, True):
        edges = cp_async.Edges(Position(zero), Position(zero), thread, thread, whole=whole)
        cp_async.async_copy(out, cp_async.Box(x, size, edges), type, base, thread, 32, 16)
    cp_async.async_copy(out, cp_async.Box(x, size), type, base, thread, 32, 16)
    out.commit_group()
    out.wait_group(0)
    out.barrier()
    layouts = mma_sync.operand_a(16, 16, grid), mma_sync.operand_b(16, 16, grid)
    a = ldmatrix.load_matrices(out, type, base, layouts[0], thread, zero, (0, 0), False)
    b = ldmatrix.load_matrices(out, type, base, layouts[1], thread, zero, (0, 0), False)
    a[0] = mma_sync.pack(out, *mma_sync.unpack(out, a[0], element), element)
    for value in mma_sync.multiply(out, a, b[:2], [out.float_constant(0)] * 4, element):
        out.store(value, y)
    arguments = Argument(x), Argument(y)
    ptx = to_ptx(kernel_module("k", arguments, out.lines, threads=32, min_blocks=None, alignment=128), target)
    for instruction in ("cp.async.cg.shared.global", "ldmatrix", ".trans", f"mma.sync.aligned.m16n8k16.row.col.f32.{element}"):
        assert instruction in ptx
