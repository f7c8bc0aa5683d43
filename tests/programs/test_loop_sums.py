"""Boxes of atomic tensors that every iteration of a loop updates: which become one update after the loop, and what the code
then computes, on the interpreter, the block machine and the emulator of three architectures."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.programs.machines import LOWERING_TESTS, manifest
from tests.programs.private_programs import COMBINED, KINDS
from tilec.codegen import ptx
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Block, Function
from tilec.ir.ops import AtomicUpdate, For, If, atomic_word
from tilec.ir.types import DTYPES
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.target.dtypes import numpy_dtype
from tilec.target.schedule import Overrides
from tilec.target.targets import MAIN_TARGETS, SM_90A

sys.path.insert(0, LOWERING_TESTS)
from block_machine import launch  # pyright: ignore

HEAD = '''"""Sums over rows."""
import tilec
from tilec import Atomic, Dim, In, atomic_add, atomic_and, atomic_max, atomic_min, atomic_or, atomic_xor, bf16, bid, f32, grid
from tilec import i32, i64, load, minimum, requires, sum, u32, u64, unsafe


class R(Dim):
    """rows"""


@tilec.kernel
'''
ROWS = """def k(x: In[{dtype}, R, {columns}], t: Atomic[{dtype}, {extent}], u: Atomic[i32, 8]):
    grid(3)
    for r in range({bounds}):
        v = load(x, (minimum(r, R - 1), 0), shape=(1, {columns})).reshape(({columns},))
        {update}
"""
PLAIN = {
    "dtype": "f32", "columns": "40", "extent": "40", "bounds": "bid(0) * 2, minimum(bid(0) * 2 + 2, R)",
    "update": "atomic_add(t, 0, v)",
}  # fmt: skip
MOVES: dict[str, dict[str, str]] = {
    "all of it": {},
    "a box of the block": {"extent": "3, 40", "update": "atomic_add(t, v.reshape((1, 40)), offset=(bid(0), 0))"},
    "partly outside": {"extent": "23", "update": "atomic_add(t, v, offset=(bid(0),), mask=True)"},
    "a loop that makes an iteration": {"bounds": "1 + R"},
    "a scalar": {"extent": "1", "update": "atomic_add(t, 0, sum(v))"},
    "out of two loops": {"bounds": "1 + R", "update": "for j in range(2):\n            atomic_add(t, 0, v)"},
}
STAYS: dict[str, dict[str, str]] = {
    "of another row each": {"extent": "R, 40", "update": "atomic_add(t, v.reshape((1, 40)), offset=(r, 0), mask=True)"},
    "twice": {"update": "atomic_add(t, 0, v)\n        atomic_add(t, 0, v * 2)"},
    "of positions too": {"extent": "4000", "update": "atomic_add(t, 0, v)\n        atomic_add(t, 1, at=r, mask=True)"},
    "under a condition": {"update": "if r % 2 == 0:\n            atomic_add(t, 0, v)"},
    "unsafe": {"update": 'with unsafe("as it says"):\n            atomic_add(t, 0, v)'},
    "rounded each time": {"dtype": "bf16"},
    "a maximum of floats": {"update": "atomic_max(t, 0, v)"},
    "too many elements": {"columns": "4096", "extent": "4096"},
}


def built(folder: Path, values: dict[str, str]) -> Function:
    path = folder / "k.py"
    path.write_text(HEAD + ROWS.format(**PLAIN | values))
    return load_kernel(path, {}, root=folder)


def scheduled(folder: Path, values: dict[str, str]) -> Function:
    return prepare(built(folder, values), SM_90A, Overrides(warps=2))


def in_loops(function: Function) -> int:
    loops = [op for op in function.body.walk() if isinstance(op, For)]
    return len({op for loop in loops for op in Block(ops=[loop]).walk() if isinstance(op, AtomicUpdate)})


@pytest.mark.parametrize("name", MOVES)
def test_which_leave_their_loop(name: str, tmp_path: Path) -> None:
    prepared = scheduled(tmp_path, MOVES[name])
    assert in_loops(prepared) == 0
    branches = [op for op in prepared.body.walk() if isinstance(op, If)]
    assert bool(branches) == ("1 + R" not in MOVES[name].get("bounds", ""))


@pytest.mark.parametrize("name", STAYS)
def test_which_stay(name: str, tmp_path: Path) -> None:
    assert in_loops(scheduled(tmp_path, STAYS[name])) > 0


def agrees_everywhere(values: dict[str, str], folder: Path, rows: int, seed: int) -> None:
    function = built(folder, values)
    prove(function)
    whole = PLAIN | values
    kind, random = numpy_dtype(DTYPES[whole["dtype"]]), np.random.default_rng(seed)
    extents = [rows if one == "R" else int(one) for one in whole["extent"].split(", ")]
    low = 0 if whole["dtype"][0] == "u" else -3
    before: dict[str, Any] = {
        "x": random.integers(low, 4, (rows, int(whole["columns"]))).astype(kind),
        "t": random.integers(low, 4, extents).astype(kind), "u": np.zeros(8, np.int32),
    }  # fmt: skip
    expected = {key: array.copy() for key, array in before.items()}
    run(function, expected)
    for number, target in enumerate(MAIN_TARGETS):
        code = lower(prepare(built(folder, values), target, Overrides(warps=2)), target)
        if not number:
            found = {key: array.copy() for key, array in before.items()}
            launch(function, code, found, {"R": rows})
            np.testing.assert_array_equal(found["t"], expected["t"])
        report = emulate(
            ptx.to_ptx(code.mlir, target), manifest(function, code, target), before, {"R": rows}, seed=number + seed
        )
        assert report.clean and not report.notes, (report.faults or report.notes)[0]
        np.testing.assert_array_equal(report.tensors["t"].view(kind).reshape(extents), expected["t"])


@pytest.mark.parametrize("name", [*MOVES, *(name for name in STAYS if name != "too many elements")])
def test_the_code_agrees_with_the_interpreter(name: str, tmp_path: Path) -> None:
    """Of 3 rows the third block has none."""
    agrees_everywhere(MOVES.get(name) or STAYS.get(name) or {}, tmp_path, 3, 1)


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.data())
def test_random_kinds_agree(dtype: str, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS[dtype]))
    columns = data.draw(st.sampled_from(("7", "40", "64", "100", "256")))
    update = f"{atomic_word(kind)}(t, 0, v)"
    bounds = data.draw(st.sampled_from((PLAIN["bounds"], "0, R, 2", "bid(0), R, 3", "2")))
    values = {"dtype": dtype, "columns": columns, "extent": columns, "update": update, "bounds": bounds}
    assert kind in COMBINED
    with tempfile.TemporaryDirectory() as folder:
        agrees_everywhere(values, Path(folder), data.draw(st.integers(1, 7)), 2)


def test_a_loop_without_iterations_keeps_every_bit(tmp_path: Path) -> None:
    """A sum of f32 in memory flushes subnormal numbers, and would make a zero of -0."""
    values = {"bounds": "bid(0) + 5, R", "columns": "8", "extent": "8"}
    function, code = built(tmp_path, values), lower(scheduled(tmp_path, values), SM_90A)
    assert in_loops(scheduled(tmp_path, values)) == 0
    before = np.array([-0.0, 1e-40, -1e-40, np.inf, np.nan, 0.0, 1.5, -2], np.float32)
    arrays = {"x": np.ones((4, 8), np.float32), "t": before.copy(), "u": np.zeros(8, np.int32)}
    report = emulate(ptx.to_ptx(code.mlir, SM_90A), manifest(function, code, SM_90A), arrays, {"R": 4}, seed=0)
    assert report.clean
    np.testing.assert_array_equal(report.tensors["t"].view(np.uint32), before.view(np.uint32))
