"""Loads that read the same box in every iteration: which leave a loop, which must not, and what the code then computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.programs.machines import manifest
from tilec.codegen import ptx
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Block, Function
from tilec.ir.ops import For, Load
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import MAIN_TARGETS, SM_90A

HEAD = '''"""A weight in a loop."""
import tilec
from tilec import Dim, In, InOut, Out, bid, cdiv, f32, grid, i32, load, minimum, requires, store, sum, unsafe, values, zeros


class N(Dim):
    """elements"""


class R(Dim):
    """rounds"""


@tilec.kernel
'''
SUM = """def k(x: In[f32, R, 64], w: In[f32, {extent}], ids: In[i32, 4], out: {out}[f32, 4, 64], count: i32):
    grid(4)
    {promise}
    acc = zeros((1, 64), f32)
    for i in range({bounds}):
        v = load(x, (i, 0), shape=(1, 64), pad=0)
        {load}
        acc = acc + v * s[None, :]
    store(out, (bid(0), 0), acc)
"""
PLAIN = {"extent": "64", "out": "Out", "promise": "requires(count <= R)", "bounds": "count", "load": "s = load(w, 0, shape=64)"}
MOVES: dict[str, dict[str, str]] = {
    "inside a constant extent": {},
    "padded, whatever its extent": {"extent": "N", "load": "s = load(w, 0, shape=64, pad=1)"},
    "in a loop that makes an iteration": {
        "extent": "N", "bounds": "1 + cdiv(R, 4)", "promise": "requires(N % 64 == 0)",
        "load": "s = load(w, bid(0) // 4, shape=64)",
    },
    "out of two loops": {
        "load": "s = load(w, 0, shape=64)\n        for j in range(count):\n            s = s + load(w, 0, shape=64)",
    },
}  # fmt: skip
STAYS: dict[str, dict[str, str]] = {
    "no iteration may be made": {
        "extent": "N", "promise": "requires(count * 64 <= N)", "load": "s = load(w, 0, shape=64)",
    },
    "at the iteration's place": {"extent": "N", "load": "s = load(w, minimum(i, 9), shape=64, pad=0)"},
    "at a place that is loaded": {
        "extent": "N", "promise": "values(ids, 0, 4)", "load": "s = load(w, load(ids, minimum(i, 3)), shape=64, pad=0)",
    },
    "unsafe": {"load": 'with unsafe("as it says"):\n            s = load(w, 0, shape=64)'},
    "a written tensor": {"out": "InOut", "load": "s = load(out, (bid(0), 0), shape=(1, 64)).reshape((64,))"},
    "too many elements": {"extent": "2048", "load": "s = sum(load(w, 0, shape=2048).reshape((32, 64)), axis=0)"},
}  # fmt: skip


def built(folder: Path, values: dict[str, str]) -> Function:
    path = folder / "k.py"
    path.write_text(HEAD + SUM.format(**PLAIN | values))
    return load_kernel(path, {}, root=folder)


def loads_in_loops(folder: Path, values: dict[str, str], name: str) -> int:
    prepared = prepare(built(folder, values), SM_90A, Overrides(warps=1))
    loops = [op for op in prepared.body.walk() if isinstance(op, For)]
    inner = {op for loop in loops for op in Block(ops=[loop]).walk()}
    return sum(isinstance(op, Load) and op.source.name == name for op in inner)


@pytest.mark.parametrize("name", MOVES)
def test_which_loads_leave_their_loop(name: str, tmp_path: Path) -> None:
    assert loads_in_loops(tmp_path, MOVES[name], "w") == 0
    assert loads_in_loops(tmp_path, MOVES[name], "x") > 0


@pytest.mark.parametrize("name", STAYS)
def test_which_loads_stay(name: str, tmp_path: Path) -> None:
    assert loads_in_loops(tmp_path, STAYS[name], "out" if "out" in STAYS[name] else "w") > 0


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("name", [*MOVES, *STAYS])
def test_the_code_agrees_with_the_interpreter(name: str, count: int, tmp_path: Path) -> None:
    """Also with no iteration, and then without a byte of a tensor that is too short for the load."""
    values = MOVES.get(name) or STAYS.get(name) or {}
    if name == "no iteration may be made" and count:
        count = 0
    function = built(tmp_path, values)
    prove(function)
    random, extent = np.random.default_rng(count), values.get("extent", "64")
    elements = (8 if not count else 64 * 8) if extent == "N" else int(extent)
    if name == "in a loop that makes an iteration":
        elements = 128
    arrays = {
        "x": random.integers(-3, 4, (4, 64)).astype(np.float32), "w": random.integers(-3, 4, elements).astype(np.float32),
        "ids": np.array([0, 1, 2, 3], np.int32), "out": random.integers(-3, 4, (4, 64)).astype(np.float32),
    }  # fmt: skip
    expected = {key: array.copy() for key, array in arrays.items()}
    run(function, expected, {"count": count})
    names = {"R": 4, "count": count} | ({"N": elements} if extent == "N" else {})
    for number, target in enumerate(MAIN_TARGETS):
        code = lower(prepare(built(tmp_path, values), target, Overrides(warps=1)), target)
        report = emulate(ptx.to_ptx(code.mlir, target), manifest(function, code, target), arrays, names, seed=number)
        assert report.clean and not report.notes, (report.faults or report.notes)[0]
        np.testing.assert_array_equal(report.tensors["out"].view(np.float32).reshape(4, 64), expected["out"])
