"""Products whose right operand has its rows along the depth, `mma(a, b, sums)`: on sm_90 `wgmma` reads it MN-major, fed by
either kind of copy, and results are the interpreter's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.clean import check_clean
from tests.programs.machines import manifest
from tilec.codegen import to_ptx
from tilec.diagnostics.diagnostic import CompileError
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function, VerifyError
from tilec.ir.ops.staging_ops import GroupMma, TensorCopy
from tilec.lowering import lower
from tilec.passes.schedule import choose, prepare
from tilec.passes.schedule.checks import bounds_fill_check
from tilec.passes.schedule.passes import pass_named, run_on_copy, through
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A, SM_100A, SM_120A, Target

KERNEL = """import tilec
from tilec import Dim, In, Out, bf16, bid, cdiv, f32, grid, load, mma, requires, store, zeros, Const

class M(Dim): ...
class N(Dim): ...
class K(Dim): ...

@tilec.kernel
def k(a: In[bf16, M, K], b: In[bf16, K, N], out: Out[f32, M, N], *, BM: Const, BN: Const):
    requires(K % 8 == 0 and N % 8 == 0 and M <= 8192 and N <= 8192)
    grid(cdiv(M, BM) * cdiv(N, BN))
    m, n = bid(0) // cdiv(N, BN), bid(0) % cdiv(N, BN)
    acc = zeros((BM, BN), f32)
    for i in range(cdiv(K, 64)):
        acc = mma(load(a, (m, i), shape=(BM, 64), pad=0), load(b, (i, n), shape=(64, BN), pad=0), acc)
    store(out, (m, n), acc, mask=True)
"""
SCHEDULES = {
    "async": ((64, 64), Overrides()),
    "wide": ((128, 128), Overrides(copy="cp_async")),
    "narrow": ((64, 32), Overrides()),
    "tma": ((128, 192), Overrides(copy="tma", consumers=2, stages=2)),
    "persistent": ((128, 256), Overrides(copy="tma", consumers=2, stages=2, persistent=True)),
    "pingpong": ((64, 128), Overrides(copy="tma", consumers=2, stages=2, persistent=True, order="pingpong")),
}


def source(folder: Path, tile: tuple[int, int]) -> Function:
    path = folder / "k.py"
    path.write_text(KERNEL, encoding="utf-8")
    return load_kernel(path, {"BM": tile[0], "BN": tile[1]}, root=folder)


def prepared(folder: Path, name: str, target: Target = SM_90A) -> Function:
    tile, wanted = SCHEDULES[name]
    return prepare(source(folder, tile), target, choose(source(folder, tile), target, wanted))


def products(function: Function) -> list[GroupMma]:
    return [op for op in function.body.walk() if isinstance(op, GroupMma)]


@pytest.mark.parametrize("name", SCHEDULES)
def test_results_are_those_of_the_interpreter(tmp_path: Path, name: str) -> None:
    """At extents that are no multiples of tiles: what lies past the end of the depth must be 0."""
    tile, wanted = SCHEDULES[name]
    schedule = choose(source(tmp_path, tile), SM_90A, wanted)
    lowered = lower(prepared(tmp_path, name), SM_90A)
    described = replace(manifest(source(tmp_path, tile), lowered, SM_90A), schedule=schedule.to_json())
    random, (m, n, k) = np.random.default_rng(3), (200, 264, 152)
    arrays: dict[str, Any] = {
        "a": random.integers(-3, 4, (m, k)).astype(ml_dtypes.bfloat16),
        "b": random.integers(-3, 4, (k, n)).astype(ml_dtypes.bfloat16),
        "out": np.zeros((m, n), np.float32),
    }
    flat = {name: one.reshape(-1).view(np.uint16 if one.dtype.itemsize == 2 else one.dtype) for name, one in arrays.items()}
    report = emulate(to_ptx(lowered.mlir, SM_90A), described, flat, {"M": m, "N": n, "K": k}, seed=1)
    check_clean(report)
    run(source(tmp_path, tile), arrays)
    assert (report.tensors["out"].view(np.float32).reshape(m, n) == arrays["out"]).all()


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name not in ("narrow", "wide")])
def test_wgmma_makes_them_on_sm_90(tmp_path: Path, name: str) -> None:
    found = products(prepared(tmp_path, name))
    assert found and all(op.mn_major for op in found)


@pytest.mark.parametrize("target", [SM_100A, SM_120A], ids=str)
def test_other_chips_load_the_operand_into_registers(tmp_path: Path, target: Target) -> None:
    assert not products(prepared(tmp_path, "async", target))


@pytest.mark.parametrize("name", ["narrow", "wide"])
def test_rows_of_other_than_128_bytes_are_not_read_so_without_tma(tmp_path: Path, name: str) -> None:
    """Asynchronous copies of threads do not divide rows into sub-tiles of 128 bytes."""
    assert not products(prepared(tmp_path, name))
    with pytest.raises(CompileError, match="its product is none that `wgmma` makes"):
        choose(source(tmp_path, SCHEDULES[name][0]), SM_90A, Overrides(mma="wgmma"))


@pytest.mark.parametrize("name", ["tma", "persistent"])
def test_rows_past_the_depth_are_filled(tmp_path: Path, name: str) -> None:
    """Rows of `a` past the end are rows of the result, which no one stores; those of `b` are added to all of it."""
    tile, wanted = SCHEDULES[name]
    schedule = choose(source(tmp_path, tile), SM_90A, wanted)
    function = run_on_copy(through(pass_named("bounds-fill")), source(tmp_path, tile), schedule, SM_90A)
    copies = {op.source.name: op for op in function.body.walk() if isinstance(op, TensorCopy)}
    assert copies["a"].unfilled and not copies["b"].unfilled
    bounds_fill_check.check(function)
    copies["b"].unfilled = True
    with pytest.raises(VerifyError, match="leaves out rows"):
        bounds_fill_check.check(function)


def test_the_other_way_round_the_matrices_do_not_fit(tmp_path: Path) -> None:
    for op in products(prepared(tmp_path, "tma")):
        op.mn_major = False
        with pytest.raises(VerifyError, match="matrices of one depth"):
            op.verify()


SCALED = """import tilec
from tilec import Dim, In, Out, bf16, bid, cdiv, f32, grid, load, mma, requires, store, where, zeros, Const

class M(Dim): ...
class N(Dim): ...
class K(Dim): ...

@tilec.kernel
def k(a: In[bf16, M, K], b: In[bf16, {rows}], out: Out[f32, M, N]):
    requires(K % 8 == 0 and N % 8 == 0 and M <= 8192 and N <= 8192)
    grid(cdiv(M, 128) * cdiv(N, 128))
    m, n = bid(0) // cdiv(N, 128), bid(0) % cdiv(N, 128)
    acc = zeros((128, 128), f32)
    total = zeros((128, 128), f32)
    for i in range(cdiv(K, 64)):
        x = load(a, (m, i), shape=(128, 64), pad=0)
        y = load(b, {box}, pad=0){turned}
        acc = mma(x, y, acc)
        if i % 2 == 1:
            total = total + acc * 2.5
            acc = zeros((128, 128), f32)
    store(out, (m, n), total + acc, mask=True)
"""
ROUNDS = {
    "along the depth": {"rows": "K, N", "box": "(i, n), shape=(64, 128)", "turned": ""},
    "transposed": {"rows": "N, K", "box": "(n, i), shape=(128, 64)", "turned": ".T"},
}


@pytest.mark.parametrize("way", ROUNDS)
def test_sums_that_an_iteration_uses_are_waited_for(tmp_path: Path, way: str) -> None:
    """A loop of one product whose sums are scaled, and begin again at zero."""
    path = tmp_path / "k.py"
    path.write_text(SCALED.format(**ROUNDS[way]), encoding="utf-8")

    def scaled() -> Function:
        return load_kernel(path, {}, root=tmp_path)

    schedule = choose(scaled(), SM_90A, Overrides(copy="tma", consumers=2, stages=2))
    function = prepare(scaled(), SM_90A, schedule)
    assert [op.mn_major for op in products(function)] == [way == "along the depth"]
    lowered = lower(function, SM_90A)
    described = replace(manifest(scaled(), lowered, SM_90A), schedule=schedule.to_json())
    random, (m, n, k) = np.random.default_rng(3), (200, 136, 328)
    arrays: dict[str, Any] = {
        "a": random.integers(-3, 4, (m, k)).astype(ml_dtypes.bfloat16),
        "b": random.integers(-3, 4, (k, n) if way == "along the depth" else (n, k)).astype(ml_dtypes.bfloat16),
        "out": np.zeros((m, n), np.float32),
    }
    flat = {name: one.reshape(-1).view(np.uint16 if one.dtype.itemsize == 2 else one.dtype) for name, one in arrays.items()}
    report = emulate(to_ptx(lowered.mlir, SM_90A), described, flat, {"M": m, "N": n, "K": k}, seed=1)
    check_clean(report)
    run(scaled(), arrays)
    assert (report.tensors["out"].view(np.float32).reshape(m, n) == arrays["out"]).all()
