"""Pipelined loops compute the same as the plain ones for every trip count, and only loops that can be pipelined are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builder import Kernel
from staged_machine import Machine

from tests import shipped
from tilec.ir import ops
from tilec.ir.core import Access, Function
from tilec.ir.expr import binary, cdiv, const, sym
from tilec.ir.layouts.shared_plan import taken_bytes
from tilec.ir.ops.staging_ops import AsyncCopy, GroupMma, SharedAlloc, SharedLoad
from tilec.ir.types import DType, TileType, bf16, f16, f32
from tilec.passes.schedule.choose import pipelines_of, product_warps
from tilec.passes.schedule.pipelining import staging
from tilec.target.schedule import NOTHING_FIXED, Role, Schedule
from tilec.target.targets import MAIN_TARGETS, SM_90A, SM_100A, SM_120A, Target

BM, BN, BK = 32, 32, 32


def stage(function: Function, target: Target) -> Function:
    """Pipelines the loops as the schedule chooses if nothing else needs shared memory."""
    function.num_warps = product_warps(function)
    schedule = Schedule((Role("all", function.num_warps),))
    pipelines = pipelines_of(function, schedule, target, NOTHING_FIXED)
    return staging.stage(function, replace(schedule, pipelines=pipelines))


def matmul(
    *,
    transposed: bool = False,
    batched: bool = False,
    aligned: bool = True,
    dtype: DType = bf16,
    tile: tuple[int, int, int] = (BM, BN, BK),
) -> Function:
    """`c = a @ b` (or `a @ b.T`) with padded loads over a grid of tiles."""
    rows, columns, depth = tile
    k = Kernel(cdiv(sym("M"), const(rows)), cdiv(sym("N"), const(columns)))
    lead: tuple[int, ...] = (1,) if batched else ()
    a = k.tensor("a", Access.IN, *lead, "M", "K", dtype=dtype)
    b = k.tensor("b", Access.IN, *(("N", "K") if transposed else ("K", "N")), dtype=dtype)
    c = k.tensor("c", Access.OUT, "M", "N")
    if aligned:
        for name in ("K", "N"):
            k.requires(binary("==", binary("%", sym(name), const(8)), const(0)))
    m, n = k.op("mul", k.bid(0), rows), k.op("mul", k.bid(1), columns)
    zero = k.emit(ops.Constant(value=0.0), TileType(f32, (rows, columns))).result
    steps = k.op("floordiv", k.op("add", "K", depth - 1), depth)
    start, one, origin = k.c(0), k.c(1), k.c(0)
    loop = ops.For(operands=[start, steps, one, zero], regions=[])
    outer, body = k.block, type(k.block)()
    iv, acc = body.add_argument(start.tile, "k"), body.add_argument(zero.tile, "acc")
    k.block = body
    at = k.op("mul", iv, depth)
    left = k.emit(
        ops.Load(operands=[a, *([origin] if batched else []), m, at], pad=0.0), TileType(dtype, (*lead, rows, depth))
    ).result
    if batched:
        left = k.emit(ops.Reshape(operands=[left]), TileType(dtype, (rows, depth))).result
    if transposed:
        right = k.emit(ops.Load(operands=[b, n, at], pad=0.0), TileType(dtype, (columns, depth))).result
        right = k.emit(ops.Permute(operands=[right], axes=(1, 0)), TileType(dtype, (depth, columns))).result
    else:
        right = k.emit(ops.Load(operands=[b, at, n], pad=0.0), TileType(dtype, (depth, columns))).result
    total = k.emit(ops.Mma(operands=[left, right, acc]), zero.tile).result
    body.ops.append(ops.Yield(operands=[total]))
    loop.regions = [body]
    k.block = outer
    k.emit(loop, zero.tile)
    k.emit(ops.Store(operands=[c, loop.results[0], m, n], mask=True))
    return k.function


def count(function: Function, kind: type) -> int:
    return sum(isinstance(op, kind) for op in function.body.walk())


@pytest.mark.parametrize("target", MAIN_TARGETS, ids=str)
@pytest.mark.parametrize("options", [{}, {"transposed": True}, {"batched": True}], ids=str)
@pytest.mark.parametrize("depth", [8, 32, 40, 64, 96, 136, 200])
def test_pipeline_computes_the_product(target: object, options: dict[str, bool], depth: int) -> None:
    function = stage(matmul(**options), target)
    for op in function.body.walk():
        op.verify()
    assert count(function, ops.Load) == 0
    rows, columns = 40, 48
    random = np.random.default_rng(depth)
    a, b = random.normal(size=(rows, depth)), random.normal(size=(depth, columns))
    c = np.full((rows, columns), np.nan)
    arrays = {"a": a[None] if options.get("batched") else a, "b": b.T if options.get("transposed") else b, "c": c}
    for block in np.ndindex(2, 2):
        machine = Machine(function, arrays, {"M": rows, "N": columns, "K": depth}, block)
        assert machine.reads == 2 * (BK // 16) * -(-depth // BK)
    np.testing.assert_allclose(c, a @ b, rtol=1e-10, atol=1e-10)


def test_a_product_of_zero_iterations_keeps_the_initial_value() -> None:
    function = stage(matmul(), SM_90A)
    c = np.full((BM, BN), np.nan)
    Machine(function, {"a": np.zeros((BM, 0)), "b": np.zeros((0, BN)), "c": c}, {"M": BM, "N": BN, "K": 0}, (0, 0))
    assert (c == 0).all()


def test_copies_are_as_wide_as_alignment_proves() -> None:
    wide = stage(matmul(), SM_90A)
    assert {op.vector for op in wide.body.walk() if isinstance(op, AsyncCopy)} == {16}
    narrow = matmul(aligned=False)
    for name in ("K", "N"):
        narrow.requires = (*narrow.requires, *matmul_precondition(name, 2))
    assert {op.vector for op in stage(narrow, SM_90A).body.walk() if isinstance(op, AsyncCopy)} == {4}


def matmul_precondition(name: str, modulus: int) -> tuple[object, ...]:
    k = Kernel(1)
    k.requires(binary("==", binary("%", sym(name), const(modulus)), const(0)))
    return k.function.requires


def test_unaligned_rows_are_not_staged() -> None:
    function = stage(matmul(aligned=False), SM_90A)
    assert count(function, SharedAlloc) == 0
    assert count(function, ops.Load) == 2


def test_operands_and_accumulator_get_fragment_layouts() -> None:
    function = stage(matmul(dtype=f16, tile=(128, 128, 64)), SM_100A)
    assert function.num_warps == 4
    loads = [op for op in function.body.walk() if isinstance(op, SharedLoad)]
    products = [op for op in function.body.walk() if isinstance(op, ops.Mma)]
    assert all(op.result.layout is not None and op.result.layout.num_registers == 32 for op in loads)
    assert {op.result.layout.num_registers for op in products if op.result.layout} == {128}


@pytest.mark.parametrize("target", MAIN_TARGETS, ids=str)
@pytest.mark.parametrize("tile", [(128, 128, 64), (64, 64, 64), (128, 256, 64), (16, 64, 128), (256, 128, 32)])
def test_buffers_do_not_overlap_and_fit_the_chip(target: object, tile: tuple[int, int, int]) -> None:
    function = stage(matmul(tile=tile), target)
    buffers = [op for op in function.body.walk() if isinstance(op, SharedAlloc)]
    assert len(buffers) == 2
    ends = sorted((op.offset, op.offset + op.result.shared.bytes) for op in buffers)
    assert ends[0][1] <= ends[1][0]
    assert ends[1][1] <= target.max_shared_bytes


def test_a_left_operand_with_other_users_stays_in_registers() -> None:
    function = matmul()
    loop = next(op for op in function.body.ops if isinstance(op, ops.For))
    load = next(op for op in loop.regions[0].ops if isinstance(op, ops.Load))
    other = ops.Unary(kind="neg", operands=[load.result])
    other.define(load.result.tile)
    loop.regions[0].ops.insert(-1, other)
    assert count(stage(function, SM_120A), SharedAlloc) == 1


def test_bytes_are_free_again_after_the_pipeline() -> None:
    function = stage(matmul(), SM_90A)
    taken = taken_bytes(function)
    store = next(op for op in function.body.ops if isinstance(op, ops.Store))
    load = next(op for op in function.body.walk() if isinstance(op, SharedLoad))
    total = sum(op.result.shared.bytes for op in function.body.ops if isinstance(op, SharedAlloc))
    assert (taken[store], taken[load]) == (0, total)


def test_warps_fit_every_product_of_the_kernel() -> None:
    """Decode attention has products of 32 x 8 and 128 x 8 elements: four warps would suit only the larger one."""
    function = shipped.load("decode_attention")
    shapes = {op.result.tile.shape for op in function.body.walk() if isinstance(op, ops.Mma)}
    assert shapes == {(32, 8), (128, 8)}
    assert stage(function, SM_90A).num_warps == 2


@pytest.mark.parametrize("depth", [8, 64, 72, 128, 320, 648])
@pytest.mark.parametrize("tile", [(64, 64, 64), (128, 32, 64), (128, 192, 64)], ids=str)
def test_products_of_warpgroups_compute_the_product(tile: tuple[int, int, int], depth: int) -> None:
    function = stage(matmul(transposed=True, tile=tile), SM_90A)
    for op in function.body.walk():
        op.verify()
    assert count(function, GroupMma) == 1 and count(function, SharedLoad) == 0
    random = np.random.default_rng(depth)
    a, b = random.normal(size=(40, depth)), random.normal(size=(48, depth))
    c = np.full((40, 48), np.nan)
    machine = Machine(function, {"a": a, "b": b, "c": c}, {"M": 40, "N": 48, "K": depth}, (0, 0))
    assert not machine.products and not machine.open
    np.testing.assert_allclose(c[: tile[0], : tile[1]], (a @ b.T)[: tile[0], : tile[1]])


@pytest.mark.parametrize(
    ("options", "target"),
    [
        ({"tile": (64, 32, 64)}, SM_90A),  # rows of the right operand, along the depth, of 64 bytes
        ({"tile": (64, 64, 64)}, SM_100A),  # a right operand whose rows lie along the depth
        ({"transposed": True, "tile": (64, 64, 32)}, SM_90A),  # rows of 64 bytes
        ({"transposed": True, "tile": (32, 64, 64)}, SM_90A),  # half a tile of rows
        ({"transposed": True, "tile": (64, 64, 64)}, SM_120A),  # no such instruction
    ],
    ids=str,
)
def test_other_products_are_of_warps(options: dict[str, Any], target: Target) -> None:
    assert count(stage(matmul(**options), target), GroupMma) == 0
