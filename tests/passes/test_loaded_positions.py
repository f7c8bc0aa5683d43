"""Products whose loop or operands depend on elements that are loaded: roles have them, and results are the interpreter's.

Where nothing says that a role may load them, TMA copies are refused.
"""

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
from tilec.ir.core import Function, Value, VerifyError
from tilec.ir.ops import Binary, For, Load
from tilec.ir.ops.staging_ops import AsyncCopy
from tilec.ir.ops.sync_ops import Roles
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import choose, prepare
from tilec.passes.schedule.checks import ring_check
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A, SM_100A, SM_120A, Target

KERNEL = """import tilec
from tilec import Dim, In, InOut, Out, bf16, bid, cdiv, f32, grid, i32, load, maximum, minimum, mma, requires, resident, store
from tilec import zeros

class M(Dim): ...
class N(Dim): ...
class K(Dim): ...
class X(Dim): ...

@tilec.kernel
def k(a: In[bf16, M, K], b: In[bf16, X, N, K], table: {access}[i32, M, 2], out: Out[f32, M, N]):
    requires(M % 64 == 0 and N % 64 == 0 and K % 64 == 0 and M <= 8192 and N <= 8192 and K <= 8192)
    grid((M // 64) * (N // 64))
    {before}
    m, n = bid(0) // (N // 64), bid(0) % (N // 64)
    which = minimum(maximum(load(table, (m, 0)), 0), X - 1)
    stop = minimum(maximum(load(table, (m, 1)), 0), K // 64)
    acc = zeros((64, 64), f32)
    for i in range(stop):
        y = load(b, (which, n, i), shape=(1, 64, 64), pad=0).reshape((64, 64))
        acc = mma(load(a, (m, i), shape=(64, 64), pad=0), y.T, acc)
    store(out, (m, n), acc)
"""
PLAIN = Overrides(copy="tma", consumers=1, stages=2)


def source(folder: Path, access: str = "In", before: str = "pass") -> Function:
    path = folder / "k.py"
    path.write_text(KERNEL.format(access=access, before=before), encoding="utf-8")
    return load_kernel(path, {}, root=folder)


def prepared(folder: Path, target: Target, wanted: Overrides, **parts: str) -> Function:
    return prepare(source(folder, **parts), target, choose(source(folder, **parts), target, wanted))


@pytest.mark.parametrize("target", [SM_90A, SM_100A, SM_120A], ids=str)
def test_results_are_those_of_the_interpreter(tmp_path: Path, target: Target) -> None:
    schedule = choose(source(tmp_path), target, PLAIN)
    assert len(schedule.roles) > 1
    lowered = lower(prepared(tmp_path, target, PLAIN), target)
    described = replace(manifest(source(tmp_path), lowered, target), schedule=schedule.to_json())
    random, (m, n, k, x) = np.random.default_rng(3), (256, 128, 192, 3)
    arrays: dict[str, Any] = {
        "a": random.integers(-3, 4, (m, k)).astype(ml_dtypes.bfloat16),
        "b": random.integers(-3, 4, (x, n, k)).astype(ml_dtypes.bfloat16),
        "table": np.array([[2, 3], [-5, 1], [99, 0], [1, 1000]]).repeat(64, axis=0)[::64].astype(np.int32),
        "out": np.zeros((m, n), np.float32),
    }
    arrays["table"] = np.concatenate((arrays["table"], np.full((m - 4, 2), -1, np.int32)))
    flat = {name: one.reshape(-1).view(np.uint16 if one.dtype.itemsize == 2 else one.dtype) for name, one in arrays.items()}
    report = emulate(to_ptx(lowered.mlir, target), described, flat, {"M": m, "N": n, "K": k, "X": x}, seed=1)
    check_clean(report)
    run(source(tmp_path), arrays)
    assert (report.tensors["out"].view(np.float32).reshape(m, n) == arrays["out"]).all()
    assert arrays["out"][:64].any() and not arrays["out"][128:192].any()


def test_the_positions_are_proven(tmp_path: Path) -> None:
    assert prove(source(tmp_path))


@pytest.mark.parametrize("wanted", [PLAIN, replace(PLAIN, persistent=True)], ids=["one tile", "persistent"])
@pytest.mark.parametrize("parts", [{"access": "InOut"}, {"before": "resident(b)"}], ids=["written", "resident"])
def test_elements_that_a_role_may_not_load_are_refused(tmp_path: Path, wanted: Overrides, parts: dict[str, str]) -> None:
    """Of a tensor that is written, and where copies of a resident tensor may start before the wait for preceding kernels."""
    with pytest.raises(CompileError, match="follows from more than launch values"):
        prepared(tmp_path, SM_90A, wanted, **parts)


def test_a_role_with_another_bound_is_refused(tmp_path: Path) -> None:
    changed = 0
    for role in (0, 1):
        function = prepared(tmp_path, SM_90A, PLAIN)
        (roles,) = [op for op in function.body.walk() if isinstance(op, Roles)]
        before = function.body.ops[: function.body.ops.index(roles)]
        (which,) = [op for op in before if isinstance(op, Binary) and op.kind == "min" and op.result not in bounds(roles)]
        for loop in [op for op in roles.regions[role].walk() if isinstance(op, For)]:
            loop.operands[1] = which.result
            changed += 1
        with pytest.raises(VerifyError, match="nothing says that they do so equally often"):
            ring_check.check(function)
    assert changed


def bounds(roles: Roles) -> set[Value]:
    """The upper bounds of the roles' loops."""
    return {op.upper for region in roles.regions for op in region.walk() if isinstance(op, For)}


def test_one_block_loads_once_for_all_roles(tmp_path: Path) -> None:
    """Without a tile loop, before the roles: bounds are then one value in both."""
    function = prepared(tmp_path, SM_90A, PLAIN)
    (roles,) = [op for op in function.body.walk() if isinstance(op, Roles)]
    before = function.body.ops[: function.body.ops.index(roles)]
    assert sum(isinstance(op, Load) for op in before) == 2
    assert not any(isinstance(op, Load) and op.source.name == "table" for region in roles.regions for op in region.walk())
    assert any(isinstance(op, Binary) and op.kind == "min" for op in before)


PAGED = """from tilec import In, InOut, Out, bf16, bid, f32, grid, i32, load, maximum, minimum, mma, store, zeros
import tilec

@tilec.kernel
def k(a: In[bf16, 5, 16, 64], b: In[bf16, 64, 16], table: {access}[i32, 4], out: Out[f32, 16, 16]):
    grid(1)
    acc = zeros((16, 16), f32)
    for i in range(4):
        page = minimum(maximum(load(table, i), 0), 4)
        acc = mma(load(a, (page, 0, 0), shape=(1, 16, 64)).reshape((16, 64)), load(b, (0, 0), shape=(64, 16)), acc)
    store(out, (0, 0), acc)
"""


def paged(folder: Path, access: str = "In") -> Function:
    path = folder / "k.py"
    path.write_text(PAGED.format(access=access), encoding="utf-8")
    return load_kernel(path, {}, root=folder)


@pytest.mark.parametrize("target", [SM_90A, SM_100A, SM_120A], ids=str)
def test_copies_ahead_load_their_positions(tmp_path: Path, target: Target) -> None:
    """Only those of iterations that the loop has: the table ends where the loop does."""
    wanted = Overrides(warps=1, stages=4)
    schedule = choose(paged(tmp_path), target, wanted)
    assert [loop.stages for loop in schedule.pipelines] == [4]
    lowered = lower(prepare(paged(tmp_path), target, schedule), target)
    described = replace(manifest(paged(tmp_path), lowered, target), schedule=schedule.to_json())
    random = np.random.default_rng(5)
    arrays: dict[str, Any] = {
        "a": random.integers(-3, 4, (5, 16, 64)).astype(ml_dtypes.bfloat16),
        "b": random.integers(-3, 4, (64, 16)).astype(ml_dtypes.bfloat16),
        "table": np.array([3, -7, 99, 1], np.int32),
        "out": np.zeros((16, 16), np.float32),
    }
    flat = {name: one.reshape(-1).view(np.uint16 if one.dtype.itemsize == 2 else one.dtype) for name, one in arrays.items()}
    report = emulate(to_ptx(lowered.mlir, target), described, flat, {}, seed=1)
    check_clean(report)
    run(paged(tmp_path), arrays)
    assert (report.tensors["out"].view(np.float32).reshape(16, 16) == arrays["out"]).all()


@pytest.mark.parametrize(("access", "copied"), [("In", True), ("InOut", False)])
def test_positions_in_a_tensor_that_is_written_are_not_loaded_ahead(tmp_path: Path, access: str, copied: bool) -> None:
    function = prepare(paged(tmp_path, access), SM_90A, choose(paged(tmp_path, access), SM_90A, Overrides(warps=1)))
    assert any(isinstance(op, AsyncCopy) and op.operands[0].name == "a" for op in function.body.walk()) == copied
