"""Writes under conditions that the prover cannot translate: it must know that an operation on the same operands gives the same,
and that lanes of two writes that memory chooses between fill a tile together. Every verdict is compared with enumeration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soundness.verdict import examine_function
from tilec.frontend import load_kernel

HEAD = '''import tilec
from tilec import Dim, In, Out, arange, bid, butterfly, cumsum, f32, grid, i32, load, scatter, store, values, where, zeros


class M(Dim):
    """rows"""


class N(Dim):
    """columns"""


@tilec.kernel
'''
BITS = """def k(out: Out[f32, M, N]):
    grid(M, N)
    b, j = bid(0), bid(1)
    if (b >> j & 1) == 0:
        store(out, (b, j), 1.0)
    if {second}:
        store(out, (b, j), 1.0)
"""
LANES = """def k(out: Out[f32, M, {size}], y: In[i32, M, 4]):
    grid(M)
    b, p = bid(0), {lanes}
    t = load(y, (b, 0), shape=(1, 4)).reshape((4,))
    scatter(out, (b, where({first}, p, 9)), zeros((4,), f32), mask=True)
    scatter(out, (b, where({second}, {index}, 9)), zeros((4,), f32), mask=True)
"""
PREFIX_SUM = """def k(out: Out[f32, M, 4], y: In[i32, M, 4]):
    grid(M)
    b, p = bid(0), arange(4)
    t = load(y, (b, 0), shape=(1, 4)).reshape((4,))
    c = cumsum(where(t > 0, 1, 0), 0)
    scatter(out, (b, where(c < 2, p, 9)), zeros((4,), f32), mask=True)
    scatter(out, (b, where(c >= 2, p, 9)), zeros((4,), f32), mask=True)
"""


def lanes(first: str, second: str, lanes: str = "arange(4)", index: str = "p", size: int = 4) -> str:
    return LANES.format(first=first, second=second, lanes=lanes, index=index, size=size)


WHOLE = {
    "a bit written twice": BITS.format(second="(b >> j & 1) != 0"),
    "lanes of two writes": lanes("t < 1", "t >= 1"),
    "lanes in another order": lanes("t < 1", "t >= 1", "butterfly(arange(4), 0, 1)"),
    "lanes from the last": lanes("t < 1", "t >= 1", "3 - arange(4)"),
    "lanes by a prefix sum": PREFIX_SUM,
}
WRONG = {
    "a bit of the next column": BITS.format(second="(b >> (j + 1) & 1) != 0"),
    "a shift to the other side": BITS.format(second="(b << j & 1) != 0"),
    "operands in another order": BITS.format(second="(j >> b & 1) != 0"),
    "another condition": lanes("t < 1", "t > 1"),
    "both conditions": lanes("t < 1", "t >= 0"),
    "other lanes": lanes("t < 1", "t >= 1", index="3 - p"),
    "the next lane's condition": lanes("t < 1", "butterfly(t, 0, 1) >= 1"),
    "more elements than lanes": lanes("t < 1", "t >= 1", size=5),
}
BRANCHES = """def k(out: Out[f32, M], small: In[f32, 8]):
    grid(M)
    b = bid(0)
    i = i32(0)
    if {guard}:
        i = b * 1073741824 // 1073741824
    {after}
    store(out, b, load(small, i))
"""


def verdict(folder: Path, text: str) -> str:
    path = folder / "k.py"
    path.write_text(HEAD + text, encoding="utf-8")
    return examine_function(load_kernel(path, {}), 0).kind


@pytest.mark.parametrize("text", WHOLE.values(), ids=WHOLE)
def test_what_two_conditions_share_is_proven(tmp_path: Path, text: str) -> None:
    assert verdict(tmp_path, text) == "accepted"


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_conditions_that_leave_a_gap_or_overlap_are_refused(tmp_path: Path, text: str) -> None:
    assert verdict(tmp_path, text) == "refused_confirmed"


def test_what_a_branch_proves_does_not_hold_after_it(tmp_path: Path) -> None:
    """A product stays in i32 in a branch for two blocks; the same product afterwards may not."""
    inside = BRANCHES.format(guard="b < 2", after="pass")
    after = BRANCHES.format(guard="b < 2", after="i = b * 1073741824 // 1073741824")
    assert verdict(tmp_path, inside) == "accepted"
    assert verdict(tmp_path, after) == "refused_confirmed"
