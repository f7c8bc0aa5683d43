"""Persistent blocks whose pipelined loops have bounds that depend on the tile: they are built and give the interpreter's
results; roles with different bounds are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.programs.machines import manifest
from tilec.codegen import to_ptx
from tilec.diagnostics.diagnostic import CompileError
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Block, Function, VerifyError
from tilec.ir.ops import Binary, For
from tilec.ir.ops.sync_ops import Roles
from tilec.lowering import lower
from tilec.passes.schedule import choose, prepare
from tilec.passes.schedule.checks import ring_check
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

KERNEL = """import tilec
from tilec import Dim, In, Out, bf16, bid, cdiv, f32, grid, load, max, minimum, mma, requires, store, sum, zeros

class M(Dim): ...
class N(Dim): ...
class K(Dim): ...

@tilec.kernel
def k(a: In[bf16, M, K], b: In[bf16, N, K], w: In[f32, N], out: Out[f32, M, N]):
    grid((M // 64) * (N // 64))
    requires(M % 64 == 0 and N % 64 == 0 and K % 64 == 0 and M <= 8192 and N <= 8192)
    t = bid(0)
    m = t // (N // 64)
    n = t % (N // 64)
    {before}
    for i in range({bounds}):
        acc = mma(load(a, (m, i), shape=(64, 64), pad=0), load(b, (n, i), shape=(64, 64), pad=0).T, acc)
    store(out, (m, n), acc)
"""
PLAIN = "acc = zeros((64, 64), f32)"
BOUNDS = (
    "minimum(t + 1, K // 64)",
    "minimum(m, K // 64), K // 64",
    "t % 3, K // 64, 2",
    "0, K // 64, t % 2 + 1",
    "t % 2 * (K // 64)",
)
BEFORE = (
    "acc = zeros((64, 64), f32) + sum(load(w, n, shape=64))",
    "acc = zeros((64, 64), f32) + max(load(a, (m, 0), shape=(64, 64)).astype(f32), axis=1)[:, None]",
)
SCHEDULE = Overrides(copy="tma", persistent=True, consumers=1, stages=2)


def source(folder: Path, bounds: str, before: str = PLAIN) -> Function:
    path = folder / "k.py"
    path.write_text(KERNEL.format(bounds=bounds, before=before), encoding="utf-8")
    return load_kernel(path, {}, root=folder)


def prepared(folder: Path, bounds: str, before: str = PLAIN) -> Function:
    function = source(folder, bounds, before)
    return prepare(function, SM_90A, choose(function, SM_90A, SCHEDULE))


@pytest.mark.parametrize("bounds", BOUNDS)
def test_kernels_with_tile_dependent_bounds_are_built(tmp_path: Path, bounds: str) -> None:
    function = prepared(tmp_path, bounds)
    (roles,) = (op for op in function.body.walk() if isinstance(op, Roles))
    assert len(roles.regions) == 2
    assert lower(function, SM_90A).entry == "k"


@pytest.mark.parametrize(("bounds", "before"), [(BOUNDS[0], PLAIN), (BOUNDS[2], BEFORE[0]), (BOUNDS[4], BEFORE[1])])
def test_they_compute_the_result_of_the_text(tmp_path: Path, bounds: str, before: str) -> None:
    schedule = choose(source(tmp_path, bounds, before), SM_90A, SCHEDULE)
    lowered = lower(prepared(tmp_path, bounds, before), SM_90A)
    described = replace(manifest(source(tmp_path, bounds, before), lowered, SM_90A), schedule=schedule.to_json())
    ptx = to_ptx(lowered.mlir, SM_90A)
    random = np.random.default_rng(3)
    m, n, k = 128, 192, 192
    arrays = {
        "a": random.integers(-3, 4, (m, k)).astype(ml_dtypes.bfloat16),
        "b": random.integers(-3, 4, (n, k)).astype(ml_dtypes.bfloat16),
        "w": random.integers(-3, 4, n).astype(np.float32),
        "out": np.zeros((m, n), np.float32),
    }
    flat = {
        name: array.reshape(-1).view(np.uint16 if array.dtype.itemsize == 2 else np.float32) for name, array in arrays.items()
    }
    report = emulate(ptx, described, flat, {"M": m, "N": n, "K": k}, seed=1)
    assert not report.faults
    run(source(tmp_path, bounds, before), arrays)
    assert (report.tensors["out"].view(np.float32).reshape(m, n) == arrays["out"]).all()


def operations_of_bounds(region: Block) -> list[Binary]:
    """The operations that compute the bounds of a role's pipelined loop from the tile."""
    (tiles,) = (op for op in region.ops if isinstance(op, For))
    loop = next(op for op in tiles.regions[0].walk() if isinstance(op, For))
    defining = {result: op for op in tiles.regions[0].walk() for result in op.results}
    found: dict[Binary, None] = {}
    pending = [*loop.operands[:3]]
    while pending:
        op = defining.get(pending.pop())
        if op is not None:
            pending += op.operands
            found |= {op: None} if isinstance(op, Binary) else {}
    return list(found)


@pytest.mark.parametrize("bounds", BOUNDS)
def test_a_role_with_fewer_iterations_is_refused(tmp_path: Path, bounds: str) -> None:
    """Changes, in one role, each operation that its loop bounds are computed with."""
    refused = 0
    for region in (0, 1):
        for index in range(64):
            function = prepared(tmp_path, bounds)
            (roles,) = (op for op in function.body.walk() if isinstance(op, Roles))
            found = operations_of_bounds(roles.regions[region])
            if index >= len(found):
                break
            found[index].kind = "sub" if found[index].kind == "add" else "add"
            with pytest.raises(VerifyError, match="nothing says that they do so equally often"):
                ring_check.check(function)
            refused += 1
    assert refused


def test_a_bound_computed_from_memory_is_refused_at_its_kernel(tmp_path: Path) -> None:
    with pytest.raises(CompileError) as caught:
        prepared(tmp_path, "minimum(K // 64, sum(zeros((64,), f32)).astype(tilec.i32))")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E0809"
    assert diagnostic.primary is not None
    assert "where it is read follows from more than launch values" in diagnostic.message
