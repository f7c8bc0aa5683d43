"""Conversions through shared memory in loops: which leave them or are not made at all, and what the code then computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.programs.machines import manifest
from tilec.codegen import ptx
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import For
from tilec.ir.ops.staging_ops import ScratchStore
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.passes.schedule.layouts import invariant_conversions, layout
from tilec.target.schedule import Overrides
from tilec.target.targets import MAIN_TARGETS, SM_90A

HEAD = '''"""Tiles in two layouts."""
import tilec
from tilec import Dim, In, Out, arange, bid, exp, f32, gather, grid, i32, load, max, maximum, requires, split, store, sum, zeros


class R(Dim):
    """rounds"""


@tilec.kernel
'''
LOOP = """def k(x: In[f32, R, 256], w: In[f32, R, 256, 2], out: Out[f32, R, 256], count: i32):
    grid(1)
    requires(count == R)
    a, b = split(load(w, (0, 0, 0), shape=(1, 256, 2), pad=0))
    for i in range(count):
        {before}
        store(out, (i, 0), load(x, (i, 0), shape=(1, 256), pad=0) * a + b)
"""
MOVES = {"two halves": "pass"}
STAYS = {"another row": "a, b = split(load(w, (i, 0, 0), shape=(1, 256, 2), pad=0))"}
FOLD = """def k(x: In[f32, R, 4096], out: Out[f32, R, 1024]):
    grid(R)
    v = load(x, (bid(0), 0), shape=(1, 4096)).reshape((4, 1024))
    store(out, (bid(0), 0), sum(exp(v - max(v, axis=0)[None, :]), axis=0)[None, :])
"""
SUMS = """def k(x: In[f32, R, 4096], out: Out[f32, 1], count: i32):
    grid(1)
    requires(count == R)
    a = zeros((512,), f32)
    for i in range(count):
        term = sum(load(x, (i, 0), shape=(1, 4096), pad=0).reshape((512, 8)), axis=1)
        a = {total}
    store(out, 0, sum(a))
"""
TOTALS = {"added": "a + term", "to it": "term + a", "the larger": "maximum(a, term)"}
OTHER_TOTALS = {"it is used twice": "a + term + a * term", "it is spread too": "a + term * sum(a)"}
POSITIONS = """def k(x: In[f32, 4, 4096], out: Out[f32, 4, 4096]):
    grid(4)
    columns = bid(0) * 1024 + arange(1024)
    store(out, (0, bid(0)), gather(x, (3 - arange(4)[:, None], columns[None, :])))
"""


def built(folder: Path, text: str) -> Function:
    path = folder / "k.py"
    path.write_text(HEAD + text)
    return load_kernel(path, {}, root=folder)


def prepared(folder: Path, text: str) -> list[Op]:
    return list(prepare(built(folder, text), SM_90A, Overrides(warps=4)).body.walk())


def stores_in_loops(folder: Path, text: str) -> int:
    loops = [op for op in prepared(folder, text) if isinstance(op, For)]
    return sum(isinstance(op, ScratchStore) for loop in loops for op in Block(ops=[loop]).walk())


@pytest.mark.parametrize("before", MOVES.values(), ids=MOVES)
def test_a_tile_that_the_loop_does_not_change_is_converted_before_it(before: str, tmp_path: Path) -> None:
    assert stores_in_loops(tmp_path, LOOP.format(before=before)) == 0
    assert any(isinstance(op, ScratchStore) for op in prepared(tmp_path, LOOP.format(before=before)))


@pytest.mark.parametrize("before", STAYS.values(), ids=STAYS)
def test_a_tile_of_the_iteration_is_converted_in_it(before: str, tmp_path: Path) -> None:
    assert stores_in_loops(tmp_path, LOOP.format(before=before)) > 0


def test_a_loop_gains_no_more_registers_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The halves need more than one of each thread."""
    monkeypatch.setattr(invariant_conversions, "MOST_REGISTERS", 1)
    assert stores_in_loops(tmp_path, LOOP.format(before=MOVES["two halves"])) > 0


def no_sums(_: For) -> dict[Value, tuple[Op, Value]]:
    return {}


@pytest.mark.parametrize("total", TOTALS.values(), ids=TOTALS)
def test_a_sum_of_a_loop_has_the_layout_of_what_is_added(total: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stores_in_loops(tmp_path, SUMS.format(total=total)) == 0
    monkeypatch.setattr(layout, "added", no_sums)
    assert stores_in_loops(tmp_path, SUMS.format(total=total)) > 0


@pytest.mark.parametrize("text", [FOLD, POSITIONS], ids=["what a reduction leaves", "positions"])
def test_what_threads_can_compute_or_have_is_not_converted(text: str, tmp_path: Path) -> None:
    assert not any(isinstance(op, ScratchStore) for op in prepared(tmp_path, text))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", ["two halves", "another row", "fold", "positions", *TOTALS, *OTHER_TOTALS])
def test_the_code_agrees_with_the_interpreter(name: str, rows: int, tmp_path: Path) -> None:
    body, total = (MOVES | STAYS).get(name), (TOTALS | OTHER_TOTALS).get(name)
    text = LOOP.format(before=body) if body else SUMS.format(total=total) if total else FOLD if name == "fold" else POSITIONS
    function = built(tmp_path, text)
    prove(function)
    random, count = np.random.default_rng(rows), 4 if name == "positions" else rows
    columns = {"fold": (4096, 1024), "positions": (4096, 4096)}.get(name, (256, 256))
    if total is not None:
        columns = (4096, 1)
    arrays = {
        "x": random.integers(-3, 4, (count, columns[0])).astype(np.float32),
        "out": np.full((count, columns[1]) if total is None else (1,), 9, np.float32),
    }
    scalars = {"count": rows} if body is not None or total is not None else {}
    if body is not None:
        arrays["w"] = random.integers(-3, 4, (rows, 256, 2)).astype(np.float32)
    expected = {key: array.copy() for key, array in arrays.items()}
    run(function, expected, scalars)
    for number, target in enumerate(MAIN_TARGETS):
        code = lower(prepare(built(tmp_path, text), target, Overrides(warps=4)), target)
        given = {"R": rows, **scalars} if name != "positions" else {}
        report = emulate(ptx.to_ptx(code.mlir, target), manifest(function, code, target), arrays, given, seed=number)
        assert report.clean and not report.notes, (report.faults or report.notes)[0]
        got = report.tensors["out"].view(np.float32).reshape(expected["out"].shape)
        np.testing.assert_allclose(got, expected["out"], rtol=1e-6)
