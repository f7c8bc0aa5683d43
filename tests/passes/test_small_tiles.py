"""Small tiles: each thread has elements of its own where others would repeat them, and layouts stay where sums need neighbors.
Their code agrees with the interpreter on three architectures."""

from __future__ import annotations

import tempfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.programs.machines import manifest
from tilec.codegen import ptx
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.ir.layouts.blocked_layouts import FIRST_DIGIT, natural, spread
from tilec.ir.ops import Binary, Load
from tilec.ir.ops.staging_ops import ScratchStore
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import choose, prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import MAIN_TARGETS, SM_90A

HEAD = '''"""Small tiles."""
import tilec
from tilec import Const, Dim, In, Out, bf16, bid, cdiv, f32, grid, load, static_range, store, sum, zeros


class T(Dim):
    """steps"""


class D(Dim):
    """channels"""


@tilec.kernel
'''
RECURRENCE = """def steps(x: In[f32, T, D], out: Out[f32, D], *, BD: Const):
    grid(cdiv(D, BD))
    h = zeros((BD,), f32)
    for t in range(T):
        h = load(x, (t, bid(0)), shape=(1, BD), pad=0).reshape((BD,)) - h * 0.5
    store(out, bid(0), h, mask=True)
"""
SUMS = """def sums(x: In[f32, T, D], out: Out[f32, T], *, BD: Const):
    grid(T)
    total = zeros((1,), f32)
    for d in range(cdiv(D, BD)):
        total = total + sum(load(x, (bid(0), d), shape=(1, BD), pad=0) * 0.5, axis=1)
    store(out, bid(0), total)
"""

TERMS = """def terms(x: In[f32, T, 16], y: In[f32, T, 16], out: Out[f32, T, 16], *, BD: Const):
    grid(cdiv(T, BD))
    first = bid(0) * BD
    left, right = (), ()
    for c in static_range({count}):
        left = (*left, load(x, offset=(first, c), shape=(BD, 1), pad=0))
        right = (*right, load(y, offset=(first, c), shape=(BD, 1), pad=1))
    for c in static_range({count}):
        total = zeros((BD, 1), f32)
        for d in static_range({count}):
            total = total + left[d] / right[(c + d) % {count}]
        store(out, total, offset=(first, c), mask=True)
"""


def made(folder: Path, text: str, size: int) -> Function:
    name = text[4 : text.index("(")]
    path = folder / f"{name}.py"
    path.write_text(HEAD + text, encoding="utf-8")
    return load_kernel(path, {"BD": size}, root=folder)


def check_agrees(folder: Path, text: str, size: int, warps: int, arrays: dict[str, Any], dims: dict[str, int]) -> None:
    """The emulator of three architectures finds nothing, and `out` is what the interpreter computes."""
    function = made(folder, text, size)
    prove(function)
    expected = {name: array.copy() for name, array in arrays.items()}
    run(function, expected)
    for number, target in enumerate(MAIN_TARGETS):
        code = lower(prepare(made(folder, text, size), target, Overrides(warps=warps)), target)
        report = emulate(ptx.to_ptx(code.mlir, target), manifest(function, code, target), arrays, dims, seed=number)
        assert report.clean and not report.notes, (report.faults or report.notes)[0]
        np.testing.assert_array_equal(report.tensors["out"].view(np.float32).reshape(arrays["out"].shape), expected["out"])


SHAPES = st.lists(st.sampled_from((1, 2, 3, 4, 8, 16, 32, 40, 64, 128)), min_size=1, max_size=3)


@settings(max_examples=200, deadline=None)
@given(SHAPES, st.sampled_from((1, 2, 4, 8)))
def test_spread_tiles_have_no_more_elements_of_a_thread(shape: list[int], warps: int) -> None:
    usual = natural(tuple(shape), warps)
    found = spread(tuple(shape), warps)
    assert found.problem(tuple(shape), warps) is None
    assert found.num_registers <= usual.num_registers
    if prod(shape) >= FIRST_DIGIT * 32 * warps:
        assert found == usual


@pytest.mark.parametrize("stored", ["h", "h.astype(bf16).astype(f32)"])
@pytest.mark.parametrize(("size", "warps", "count"), [
    (32, 1, 1), (32, 4, 1), (64, 4, 1), (128, 4, 1), (256, 4, 2), (1024, 4, 8), (256, 1, 8),
])  # fmt: skip
def test_no_thread_repeats_the_steps_of_another(tmp_path: Path, size: int, warps: int, count: int, stored: str) -> None:
    text = RECURRENCE.replace("bid(0), h", f"bid(0), {stored}")
    function = prepare(made(tmp_path, text, size), SM_90A, Overrides(warps=warps))
    steps = [op.result.layout for op in function.body.walk() if isinstance(op, Binary) and op.result.tile.rank]
    assert steps and {layout.num_registers for layout in steps if layout is not None} == {count}
    assert not any(isinstance(op, ScratchStore) for op in function.body.walk())


def test_rows_that_a_loop_sums_stay_as_they_are(tmp_path: Path) -> None:
    """Spread over four warps, each step would meet at a barrier."""
    function = prepare(made(tmp_path, SUMS, 128), SM_90A, Overrides(warps=4))
    layouts = [op.result.layout for op in function.body.walk() if isinstance(op, Load)]
    assert layouts and all(layout is not None and layout.num_registers == FIRST_DIGIT for layout in layouts)


@settings(max_examples=8, deadline=None)
@given(st.sampled_from((RECURRENCE, SUMS)), st.sampled_from((24, 32, 64, 128, 256)), st.sampled_from((1, 2, 4)), st.data())
def test_code_agrees_with_the_interpreter(text: str, size: int, warps: int, data: st.DataObject) -> None:
    """Sums and halves of small integers are exact."""
    steps, channels = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 2 * size))
    random = np.random.default_rng(channels)
    arrays = {"x": random.integers(-9, 10, (steps, channels)).astype(np.float32)}
    arrays["out"] = np.zeros(channels if text == RECURRENCE else steps, np.float32)
    with tempfile.TemporaryDirectory() as folder:
        check_agrees(Path(folder), text, size, warps, arrays, {"T": steps, "D": channels})


@pytest.mark.parametrize(("count", "size", "each"), [(16, 128, 1), (16, 64, 1), (4, 128, 8), (16, 1024, 8)])
def test_tiles_that_would_fill_the_registers_are_spread(count: int, size: int, each: int, tmp_path: Path) -> None:
    """32 tiles live at once; of 8, and of those with eight elements for each thread, none is spread."""
    prepared = prepare(made(tmp_path, TERMS.format(count=count), size), SM_90A, Overrides(warps=4))
    layouts = {op.result.layout for op in prepared.body.walk() if isinstance(op, Binary) and op.kind == "div"}
    assert {layout.num_registers for layout in layouts if layout is not None} == {each}


def test_spread_tiles_without_a_loop_agree(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    arrays = {"x": random.integers(-9, 10, (201, 16)).astype(np.float32), "out": np.zeros((201, 16), np.float32)}
    arrays["y"] = (2.0 ** random.integers(-2, 3, (201, 16))).astype(np.float32)
    check_agrees(tmp_path, TERMS.format(count=16), 128, 4, arrays, {"T": 201})


def test_a_kernel_that_loads_nothing_has_warps_for_what_it_stores(tmp_path: Path) -> None:
    text = """def ones(out: Out[f32, T], *, BD: Const):
    grid(cdiv(T, BD))
    store(out, bid(0), zeros((BD,), f32) + 1, mask=True)
"""
    assert [choose(made(tmp_path, text, size), SM_90A).warps for size in (512, 1024, 2048)] == [1, 2, 4]
