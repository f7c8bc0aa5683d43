"""Runs of index tiles against their elements: what `run_of` says of the last axis is true of every row that the interpreter
computes, also where indices wrap."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.ops import Store
from tilec.passes.analysis.divisibility import aligned_ranges
from tilec.passes.analysis.runs import Run, run_of

COLUMNS, ROWS, BLOCKS = 16, 4, 3
HEAD = f'''"""An index tile."""
import tilec
from tilec import In, Out, abs, arange, bid, grid, i32, i64, load, maximum, minimum, store


@tilec.kernel
def k(x: In[i32, {ROWS}], out: Out[i64, {BLOCKS}, {ROWS}, {COLUMNS}], n: i32):
    grid({BLOCKS})
    row = load(x, 0, shape={ROWS}).reshape(({ROWS}, 1))
    tile = {{text}}
    store(out, (bid(0), 0, 0), i64(tile).reshape((1, {ROWS}, {COLUMNS})))
'''
COLUMN = f"arange({COLUMNS})"
SPREAD = f"arange({COLUMNS})[None, :] + row * 0"


def terms(depth: int) -> st.SearchStrategy[str]:
    """Expressions of two axes, `ROWS` x `COLUMNS` after the last sum."""
    leaves = st.sampled_from(
        (f"{COLUMN}[None, :]", "row", "bid(0)", "n", "4", "8", "-16", "2147483640", f"arange({ROWS})[:, None]")
    )
    if not depth:
        return leaves
    below = terms(depth - 1)
    return st.one_of(
        leaves,
        st.tuples(below, st.sampled_from(("+", "-", "*")), below).map(lambda parts: f"({' '.join(parts)})"),
        below.map(lambda text: f"({text} * 8)"),
        below.map(lambda text: f"minimum({text}, row)"),
    )


def checked(text: str, numbers: list[int], n: int) -> Run | None:
    """The run of an index tile, after its elements agreed with it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "k.py"
        path.write_text(HEAD.format(text=f"{text} + ({SPREAD}) - {COLUMN}[None, :]"))
        function = load_kernel(path, {}, root=Path(folder))
    (op,) = [op for op in function.body.walk() if isinstance(op, Store)]
    found = run_of(op.tile, aligned_ranges(function))
    arrays: dict[str, Any] = {"x": np.array(numbers, np.int32), "out": np.zeros((BLOCKS, ROWS, COLUMNS), np.int64)}
    run(function, arrays, {"n": n})
    if found is not None:
        first, width = arrays["out"][..., :1].astype(object), 1 << 32
        power = found.divides & -found.divides if found.divides else width
        assert all(one % power == 0 for one in first.ravel()), (text, found)
        expected = (first + found.step * np.arange(COLUMNS).astype(object)) % width
        assert (arrays["out"].astype(object) % width == expected).all(), (text, found)
    return found


@settings(max_examples=60, deadline=None)
@given(terms(3), st.lists(st.integers(-(2**31), 2**31 - 1), min_size=ROWS, max_size=ROWS), st.integers(-(2**31), 2**31 - 1))
def test_runs_are_true_of_every_row(text: str, numbers: list[int], n: int) -> None:
    try:
        checked(text, numbers, n)
    except CompileError as error:
        assert {one.code for one in error.diagnostics} == {"E0205"}  # a constant that does not fit i32
        reject()


KNOWN: dict[str, Callable[[Run | None], bool]] = {
    f"{COLUMN}[None, :]": lambda run: run == Run(1, 0),
    f"{COLUMN}[None, :] + bid(0) * 8": lambda run: run is not None and run.step == 1 and run.divides % 8 == 0,
    f"{COLUMN}[None, :] * 4": lambda run: run is not None and run.step == 4,
    "row": lambda run: run is not None and run.step == 0,
    f"{COLUMN}[None, :] + row": lambda run: run is not None and run.step == 1 and run.divides in (1, -1),
    f"{COLUMN}[None, :] * row": lambda run: run is None,
    f"minimum({COLUMN}[None, :], row)": lambda run: run is None,
}


@pytest.mark.parametrize("text", KNOWN)
def test_what_is_known(text: str) -> None:
    assert KNOWN[text](checked(text, [3, 5, 8, 9], 7))
