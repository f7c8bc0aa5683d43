"""Persistent blocks whose loads and iterations follow from elements of `In` tensors, which each role loads for its tile: they
are built and give the interpreter's results. What other elements decide is refused, and so are roles that load other ones."""

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
from tilec.ir.layouts.blocked_layouts import natural
from tilec.ir.ops import Constant, For, Load
from tilec.ir.ops.sync_ops import Roles
from tilec.ir.types import TileType, i32
from tilec.lowering import lower
from tilec.passes.schedule import choose, prepare
from tilec.passes.schedule.checks import ring_check, verify
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

KERNEL = """import tilec
from tilec import Dim, In, InOut, Out, bf16, bid, cdiv, f32, grid, i32, load, mma, requires, resident, store, zeros

class M(Dim): ...
class N(Dim): ...
class K(Dim): ...
class T(Dim): ...

@tilec.kernel
def k(a: In[bf16, M, K], b: In[bf16, N, K], first: In[i32, T], steps: In[i32, T], out: Out[f32, T, 64, N]):
    grid(T * cdiv(N, 64))
    requires(K % 8 == 0 and K <= 8192 and N <= 8192 and T <= 64 and M <= 8192)
    t, n = bid(0) // cdiv(N, 64), bid(0) % cdiv(N, 64)
    row = min(max(load(first, t), 0), M)
    acc = zeros((64, 64), f32)
    for i in range(min(load(steps, t), cdiv(K, 64))):
        x = load(a, offset=(row, i * 64), shape=(64, 64), pad=0)
        acc = mma(x, load(b, (n, i), shape=(64, 64), pad=0).T, acc)
    store(out, (t, 0, n), acc[None, :, :], mask=True)
"""
SCHEDULE = Overrides(copy="tma", persistent=True, consumers=1, stages=2)


def source(folder: Path, *edits: tuple[str, str]) -> Function:
    text = KERNEL
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path = folder / "k.py"
    path.write_text(text, encoding="utf-8")
    return load_kernel(path, {}, root=folder)


def prepared(folder: Path, *edits: tuple[str, str], wanted: Overrides = SCHEDULE) -> Function:
    function = source(folder, *edits)
    return prepare(function, SM_90A, choose(function, SM_90A, wanted))


def producer(function: Function) -> Block:
    (roles,) = (op for op in function.body.walk() if isinstance(op, Roles))
    return roles.regions[-1]


WIDE = (("shape=(64, 64), pad=0)\n", "shape=(128, 64), pad=0)\n"), ("zeros((64", "zeros((128"), ("T, 64, N]", "T, 128, N]"))


@pytest.mark.parametrize(("edits", "wanted"), [((), SCHEDULE), (WIDE, replace(SCHEDULE, consumers=2))])
@pytest.mark.parametrize("seed", range(3))
def test_they_compute_the_result_of_the_text(
    tmp_path: Path, edits: tuple[tuple[str, str], ...], wanted: Overrides, seed: int
) -> None:  # fmt: skip
    """Tiles begin at any row, past the last one too, and have from no iteration to all; blocks have several tiles."""
    schedule = choose(source(tmp_path, *edits), SM_90A, wanted)
    lowered = lower(prepared(tmp_path, *edits, wanted=wanted), SM_90A)
    described = replace(manifest(source(tmp_path, *edits), lowered, SM_90A), schedule=schedule.to_json())
    random = np.random.default_rng(seed)
    m, n, k, t = 150, 72, 200, 5
    arrays = {
        "a": random.integers(-3, 4, (m, k)).astype(ml_dtypes.bfloat16),
        "b": random.integers(-3, 4, (n, k)).astype(ml_dtypes.bfloat16),
        "first": np.array([3, 150, 0, 77, -5], np.int32),
        "steps": np.array([4, 1, 0, 9, 3], np.int32),
        "out": np.zeros((t, 128 if edits else 64, n), np.float32),
    }
    flat = {
        name: array.reshape(-1).view(np.uint16 if array.dtype.itemsize == 2 else array.dtype) for name, array in arrays.items()
    }
    report = emulate(to_ptx(lowered.mlir, SM_90A), described, flat, {"M": m, "N": n, "K": k, "T": t}, seed=seed)
    assert not report.faults
    run(source(tmp_path, *edits), arrays)
    assert (report.tensors["out"].view(np.float32).reshape(arrays["out"].shape) == arrays["out"]).all()


def test_each_role_loads_its_elements(tmp_path: Path) -> None:
    function = prepared(tmp_path)
    (roles,) = (op for op in function.body.walk() if isinstance(op, Roles))
    loaded = [{op.source.name for op in region.walk() if isinstance(op, Load)} for region in roles.regions]
    assert loaded == [{"steps"}, {"first", "steps"}]
    assert not any(isinstance(op, Load) for op in function.body.ops)


@pytest.mark.parametrize(
    "edits",
    [
        (("first: In", "first: InOut"),),
        (("steps: In", "steps: InOut"), ("    store(out", "    store(steps, t, load(steps, t))\n    store(out")),
        (("    row =", "    resident(b)\n    row ="),),
    ],
)
def test_what_may_be_written_decides_no_copy(tmp_path: Path, edits: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(CompileError, match="where it is read follows from more than launch values"):
        prepared(tmp_path, *edits)


def test_roles_that_load_different_elements_are_refused(tmp_path: Path) -> None:
    function = prepared(tmp_path)
    ring_check.check(function)
    (tiles,) = (op for op in producer(function).ops if isinstance(op, For))
    (load,) = (op for op in tiles.regions[0].ops if isinstance(op, Load) and op.source.name == "steps")
    other = Constant(value=0)
    other.define(TileType(i32))
    load.operands[1] = other.result
    tiles.regions[0].ops.insert(0, other)
    with pytest.raises(VerifyError, match="nothing says that they do so equally often"):
        ring_check.check(function)


def test_roles_that_load_what_is_written_are_refused(tmp_path: Path) -> None:
    function = prepared(tmp_path)
    parameter = next(one for one in function.parameters if one.name == "steps")
    position = function.parameters.index(parameter)
    written = next(one.access for one in source(tmp_path, ("steps: In", "steps: InOut")).parameters if one.name == "steps")
    changed = replace(parameter, access=written)
    function.parameters = type(function.parameters)(
        [*function.parameters[:position], changed, *function.parameters[position + 1 :]]
    )
    with pytest.raises(VerifyError, match="nothing says that they do so equally often"):
        ring_check.check(function)


def test_one_thread_loads_no_tile_of_several_elements(tmp_path: Path) -> None:
    function = prepared(tmp_path)
    verify.verify(function, SM_90A)
    (tiles,) = (op for op in producer(function).ops if isinstance(op, For))
    load = next(op for op in tiles.regions[0].ops if isinstance(op, Load))
    wider = replace(load, results=[])
    wider.define(TileType(i32, (2,)))
    wider.result.layout = natural((2,), 4)
    tiles.regions[0].ops.insert(tiles.regions[0].ops.index(load), wider)
    with pytest.raises(VerifyError, match="one thread of the role is here alone"):
        verify.verify(function, SM_90A)
