"""Loads of iterations to come: which loops get them, and what the code then reads and computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.programs.machines import manifest
from tilec.codegen import ptx
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.ir.ops import For, Load
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.passes.schedule.pipelining.loads_in_flight import MOST_AHEAD
from tilec.target.schedule import Overrides
from tilec.target.targets import MAIN_TARGETS, SM_90A

KERNEL = '''"""A recurrence over rows."""
import tilec as tl


class M(tl.Dim):
    """rows"""


class N(tl.Dim):
    """columns"""


@tl.kernel
def k(x: tl.{access}[tl.{dtype}, M, N], ids: tl.In[tl.i32, M], out: tl.Out[tl.f32, N], first: tl.i32, step: tl.i32):
    tl.requires(first >= {least}, first <= 100, step >= 1, step <= 1000, M <= 1000000)
    tl.values(ids, 0, M)
    tl.grid(tl.cdiv(N, {columns}))
    j = tl.bid(0)
    state = tl.zeros((1, {columns}), tl.f32)
    for i in range({bounds}):
        {load}
        state = state * 0.5 + v.astype(tl.f32)
    tl.store(out, j, state.reshape(({columns},)), mask=True)
'''
ROW = "v = tl.load(x, (i, j), shape=(1, {columns}), pad=0)"
DEFAULT = {"access": "In", "dtype": "f32", "columns": "128", "bounds": "M", "load": ROW, "least": "0"}
SHARED_OUT = {"columns": "2048", "bounds": "tl.bid(0), M, tl.num_blocks(0)"}
AHEAD: dict[str, dict[str, str]] = {
    "many bytes that blocks share out": SHARED_OUT,
    "all rows": {},
    "some rows, with a step": {"bounds": "tl.bid(0), M, step"},
    "two loads": {"dtype": "f16", "load": ROW + "\n        v = v + tl.load(x, (M - 1 - i, j), shape=(1, {columns}), pad=0)"},
    "of bytes": {"dtype": "u8"},
    "a sum of each row, which is not copied": {
        "dtype": "u8",
        "load": ROW + "\n        v = v.astype(tl.f32) + tl.sum(v.astype(tl.f32))",
    },
}
AS_WRITTEN: dict[str, dict[str, str]] = {
    "rows that are many bytes of a thread": {"columns": "2048"},
    "such rows that blocks share out, with a schedule": SHARED_OUT,
    "rows that are chosen by what is loaded": {"load": "v = tl.load(x, (tl.load(ids, i), j), shape=(1, {columns}), pad=0)"},
    "few iterations": {"bounds": "7", "load": "v = tl.load(x, (tl.minimum(i, M - 1), j), shape=(1, {columns}), pad=0)"},
    "a variable that may be negative": {
        "bounds": "first, M", "least": "-100", "load": "v = tl.load(x, (tl.maximum(i, 0), j), shape=(1, {columns}), pad=0)",
    },
    "a tensor that is written": {"access": "InOut", "load": ROW + "\n        tl.store(x, (i, j), v + 1, mask=True)"},
    "a position that an iteration computes": {
        "load": "v = tl.load(x, (tl.minimum(tl.i32(tl.sum(state)), 0) * 0 + i, j), shape=(1, {columns}), pad=0)",
    },
}  # fmt: skip


WANTED = Overrides(warps=4)
FREE = {"many bytes that blocks share out": Overrides()}
"""What is wanted of the schedule, where that is not `WANTED`."""


def built(folder: Path, values: dict[str, str]) -> Function:
    path, fields = folder / "k.py", DEFAULT | values
    path.write_text(KERNEL.format(**fields | {"load": fields["load"].format(columns=fields["columns"])}))
    return load_kernel(path, {}, root=folder)


def carried_rows(function: Function, wanted: Overrides = WANTED) -> int:
    """Rows that loops carry from one iteration to the next besides the state."""
    prepared = prepare(function, SM_90A, wanted)
    loops = [op for op in prepared.body.walk() if isinstance(op, For)]
    return max(sum(isinstance(value.owner, Load) for value in loop.initial) for loop in loops)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("all rows", 32),
        ("some rows, with a step", 32),
        ("two loads", 64),
        ("of bytes", 32),
        ("many bytes that blocks share out", 3),
        ("a sum of each row, which is not copied", 16),
    ],
)
def test_which_loops_load_ahead(name: str, rows: int, tmp_path: Path) -> None:
    assert carried_rows(built(tmp_path, AHEAD[name]), FREE.get(name, WANTED)) == rows


@pytest.mark.parametrize("name", AS_WRITTEN)
def test_which_loops_stay(name: str, tmp_path: Path) -> None:
    assert carried_rows(built(tmp_path, AS_WRITTEN[name])) == 0


@pytest.mark.parametrize("rows", [1, 2, MOST_AHEAD, MOST_AHEAD + 1, 2 * MOST_AHEAD + 5])
@pytest.mark.parametrize("name", AHEAD)
def test_the_code_agrees_with_the_interpreter(name: str, rows: int, tmp_path: Path) -> None:
    """Tensors end where the last row does, and begin where the first does: the emulator reports a byte beyond."""
    values = AHEAD[name]
    function = built(tmp_path, values)
    prove(function)
    random, columns = np.random.default_rng(rows), 77 + rows % 2 * 51
    dtype = {"f32": np.float32, "f16": np.float16, "u8": np.uint8}[values.get("dtype", "f32")]
    arrays = {
        "x": random.integers(0, 9, (rows, columns)).astype(dtype), "ids": np.zeros(rows, np.int32),
        "out": np.full(columns, np.nan, np.float32),
    }  # fmt: skip
    for first, step in ((0, 1), (0, 2), (0, 100)) if name == "some rows, with a step" else ((0, 1),):
        scalars = {"first": first, "step": step}
        expected = {key: array.copy() for key, array in arrays.items()}
        run(function, expected, scalars)
        for number, target in enumerate(MAIN_TARGETS if rows == MOST_AHEAD + 1 else (SM_90A,)):
            code = lower(prepare(built(tmp_path, values), target, FREE.get(name, WANTED)), target)
            launch = {"M": rows, "N": columns, **scalars}
            report = emulate(ptx.to_ptx(code.mlir, target), manifest(function, code, target), arrays, launch, seed=number)
            assert report.clean and not report.notes, (report.faults or report.notes)[0]
            np.testing.assert_array_equal(report.tensors["out"].view(np.float32), expected["out"])
