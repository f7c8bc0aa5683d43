"""Left shifts by an amount of many values: those that may leave their dtype are refused, and enumeration agrees."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soundness.verdict import examine_function
from tilec.frontend import load_kernel

HEAD = '''"""A shift that decides where memory is read."""
from tilec import Dim, In, Out, bid, f32, grid, i32, i64, kernel, load, requires, store, u32, values


class N(Dim):
    """blocks"""


@kernel
'''
LOADED = """def k(x: In[{dtype}, N], y: In[i32, N], small: In[f32, 8], out: Out[f32, N]):
    grid(N)
    values(x, {low}, {high})
    values(y, 0, 3)
    store(out, bid(0), load(small, (({operand} << load(x, bid(0))) % 8).astype(i32)))
"""
PASSED = """def k(small: In[f32, 8], out: Out[f32, N], s: i32):
    grid(N)
    requires(0 <= s, s < {high})
    store(out, bid(0), load(small, (i32(1) << s) % 8))
"""
LOAD = "load(y, bid(0))"
RIGHT = {
    "the largest amount": LOADED.format(dtype="i32", low=0, high=31, operand="i32(1)"),
    "the largest amount of u32": LOADED.format(dtype="u32", low=0, high=2**32, operand="(u32(1) & 0)"),
    "the sign bit of u32": LOADED.format(dtype="u32", low=0, high=32, operand="u32(1)"),
    "amounts of the width and more give 0": LOADED.format(dtype="i32", low=32, high=80, operand="i32(5)"),
    "negative amounts give 0": LOADED.format(dtype="i32", low=-40, high=29, operand="i32(7)"),
    "the smallest number": LOADED.format(dtype="i32", low=0, high=32, operand="i32(-1)"),
    "a loaded operand": LOADED.format(dtype="i32", low=0, high=30, operand=LOAD),
    "an amount that requires bounds": PASSED.format(high=31),
}
WRONG = {
    "by one too many": ("E0304", LOADED.format(dtype="i32", low=0, high=32, operand="i32(1)")),
    "by any amount": ("E0304", LOADED.format(dtype="i32", low=-(2**31), high=2**31, operand="i32(3)")),
    "a negative number": ("E0304", LOADED.format(dtype="i32", low=0, high=32, operand="i32(-2)")),
    "a loaded operand by one too many": ("E0304", LOADED.format(dtype="i32", low=0, high=31, operand=LOAD)),
    "an amount that requires lets pass": ("E0304", PASSED.format(high=32)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_shifts_that_stay_inside_are_accepted(name: str, tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text(HEAD + RIGHT[name], encoding="utf-8")
    verdict = examine_function(load_kernel(path, {}), 1)
    assert verdict.kind == "accepted" and verdict.launches, (verdict.diagnostics, verdict.fault)


@pytest.mark.parametrize("name", WRONG)
def test_shifts_that_may_wrap_are_refused(name: str, tmp_path: Path) -> None:
    code, text = WRONG[name]
    path = tmp_path / "k.py"
    path.write_text(HEAD + text, encoding="utf-8")
    verdict = examine_function(load_kernel(path, {}), 1)
    assert (verdict.kind, verdict.codes, verdict.wrong_examples) == ("refused_confirmed", (code,), ()), verdict
    assert verdict.fault is not None and verdict.fault.kind == "wrap"
