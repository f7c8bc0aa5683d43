"""Scatters of sums: the tile passes between threads so that each stores whole vectors; its positions do not."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.programs.machines import manifest
from tilec.codegen import to_ptx
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.ir.ops import Scatter
from tilec.ir.ops.staging_ops import ScratchStore
from tilec.lowering import lower
from tilec.passes.schedule import choose, prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

KERNEL = """import tilec
from tilec import Dim, In, InOut, arange, bf16, bid, cdiv, f32, grid, load, mma, requires, scatter, values, where, zeros

class M(Dim): ...
class N(Dim): ...
class K(Dim): ...
class T(Dim): ...

@tilec.kernel
def k(a: In[bf16, M, K], b: In[bf16, N, K], ends: In[tilec.i32, T], out: InOut[bf16, M, N]):
    grid(T, cdiv(N, 64))
    requires(K % 8 == 0 and {rows} and T * 64 <= 8192 and M <= 8192 and N <= 8192 and K <= 8192)
    t, n = bid(0), bid(1)
    acc = zeros((64, 64), f32)
    for i in range(cdiv(K, 64)):
        acc = mma(load(a, (t, i), shape=(64, 64), pad=0), load(b, (n, i), shape=(64, 64), pad=0).T, acc)
    row = t * 64 + arange(64)
    row = where(row < load(ends, t), row, M)
    scatter(out, (row[:, None], (n * 64 + arange(64))[None, :]), acc.astype(bf16), mask=True)
"""


def source(folder: Path, rows: str) -> Function:
    path = folder / "k.py"
    path.write_text(KERNEL.format(rows=rows), encoding="utf-8")
    return load_kernel(path, {}, root=folder)


def prepared(folder: Path, rows: str) -> Function:
    function = source(folder, rows)
    return prepare(function, SM_90A, choose(function, SM_90A, Overrides(warps=4)))


def test_the_tile_passes_between_threads_and_no_position(tmp_path: Path) -> None:
    function = prepared(tmp_path, "N % 8 == 0")
    stored = [op.operands[1].tile.dtype.name for op in function.body.walk() if isinstance(op, ScratchStore)]
    (scatter,) = (op for op in function.body.walk() if isinstance(op, Scatter))
    assert stored == ["bf16"] and scatter.vector == 16
    assert {value.layout for value in scatter.indices} == {scatter.tile.layout}


def test_a_tile_whose_rows_begin_anywhere_stays(tmp_path: Path) -> None:
    """Vectors gain nothing: positions are of the threads that have the sums."""
    function = prepared(tmp_path, "N >= 1")
    (scatter,) = (op for op in function.body.walk() if isinstance(op, Scatter))
    assert scatter.vector <= 2 and {value.layout for value in scatter.indices} == {scatter.tile.layout}


@pytest.mark.parametrize("columns", [72, 200])
def test_they_store_what_the_interpreter_stores(tmp_path: Path, columns: int) -> None:
    lowered = lower(prepared(tmp_path, "N % 8 == 0"), SM_90A)
    described = manifest(source(tmp_path, "N % 8 == 0"), lowered, SM_90A)
    random = np.random.default_rng(columns)
    arrays = {
        "a": random.integers(-3, 4, (150, 72)).astype(ml_dtypes.bfloat16),
        "b": random.integers(-3, 4, (columns, 72)).astype(ml_dtypes.bfloat16),
        "ends": np.array([50, 128, 170], np.int32),
        "out": random.integers(-3, 4, (150, columns)).astype(ml_dtypes.bfloat16),
    }
    flat = {
        name: array.reshape(-1).view(np.uint16 if array.dtype.itemsize == 2 else array.dtype) for name, array in arrays.items()
    }
    report = emulate(to_ptx(lowered.mlir, SM_90A), described, flat, {"M": 150, "N": columns, "K": 72, "T": 3}, seed=1)
    assert not report.faults
    run(source(tmp_path, "N % 8 == 0"), arrays)
    assert (report.tensors["out"].view(ml_dtypes.bfloat16).reshape(150, columns) == arrays["out"]).all()
