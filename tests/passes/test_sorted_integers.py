"""What a sort leaves is in order, and the positions of the largest elements differ; near misses are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.passes.texts import verdict_of

HEAD = '''"""Integers in order."""

from tilec import Dim, In, InOut, Out, arange, argsort, bid, cumsum, ensures, f32, flip, gather, grid, i32, inf, kernel, load
from tilec import minimum, requires, reshape, scatter, sort, store, sum, topk, values, where


class M(Dim):
    """entries of a table"""


class N(Dim):
    """numbers"""


@kernel
'''
SORTED = """def k(x: In[i32, N], y: In[i32, N], out: Out[i32, 16]):
    grid(1)
    values(x, 0, N)
    values(y, 0, N)
    ensures(out, 0, N, sorted=True)
    v = load(x, 0, shape=16, pad=0)
    w = load(y, 0, shape=16, pad=0)
    store(out, 0, {what})
"""
ROWS = """def k(x: In[i32, 8, 4], out: Out[i32, 32]):
    grid({blocks})
    values(x, 0, 9)
    ensures(out, 0, 99, sorted=True)
    for j in range({blocks_of}):
        r = {row}
        store(out, r, sort(load(x, (r, 0), shape=(1, 4)), 1).reshape((4,)) + r * {step})
"""
LARGEST = """def k(x: In[f32, N], out: Out[i32, 4]):
    grid(1)
    ensures(out, 0, 16, distinct=True)
    v = load(x, 0, shape=16, pad=-inf)
    _, at = topk(v, 4, 0)
    store(out, 0, {what})
"""
RIGHT = {
    "upwards": SORTED.format(what="sort(v, 0)"),
    "downwards and reversed": SORTED.format(what="flip(sort(v, 0, descending=True), 0)"),
    "as keys of others": SORTED.format(what="sort((v, w), 0)[0]"),
    "rows apart": ROWS.format(blocks="8", blocks_of="1", row="bid(0)", step="8"),
    "rows of iterations apart": ROWS.format(blocks="2", blocks_of="4", row="bid(0) * 4 + j", step="8"),
    "positions of the largest": LARGEST.format(what="at"),
    "positions the other way round": LARGEST.format(what="15 - at"),
}
WRONG = {
    "downwards": SORTED.format(what="sort(v, 0, descending=True)"),
    "reversed": SORTED.format(what="flip(sort(v, 0), 0)"),
    "moved with other keys": SORTED.format(what="sort((v, w), 0)[1]"),
    "sorted and less": SORTED.format(what="minimum(sort(v, 0), w)"),
    "rows that overlap": ROWS.format(blocks="8", blocks_of="1", row="bid(0)", step="7"),
    "rows of iterations that overlap": ROWS.format(blocks="2", blocks_of="4", row="bid(0) * 4 + j", step="7"),
    "halved positions": LARGEST.format(what="at // 2"),
    "positions up to one": LARGEST.format(what="where(at > 0, at - 1, 0)"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_integers_in_order_are_accepted(name: str, tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, HEAD + RIGHT[name], 3)
    assert verdict.kind == "accepted", verdict


@pytest.mark.parametrize("name", WRONG)
def test_others_are_refused(name: str, tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, HEAD + WRONG[name], 3)
    assert verdict.kind == "refused_confirmed" and not verdict.wrong_examples, verdict


ONE = {
    "sum": ("sum(hi)", True),
    "sum of one that is larger": ("sum(hi + 1)", False),
    "sum of two": ("sum(load(x, bid(0) + 1, shape=2, pad=0))", False),
    "of several, one kept": ("sum(where(arange(4) == 2, load(x, bid(0), shape=4, pad=0), 0))", True),
    "of several, two kept": ("sum(where(arange(4) >= 2, load(x, bid(0), shape=4, pad=0), 0))", False),
}


@pytest.mark.parametrize("name", ONE)
def test_the_only_element_of_a_sum_is_known(name: str, tmp_path: Path) -> None:
    """A reduction of one element, or of zeros and one other, is that element, which is declared to be an index."""
    what, right = ONE[name]
    verdict = verdict_of(
        tmp_path,
        HEAD
        + f"""def k(x: In[i32, N], t: In[f32, M], out: Out[f32, N]):
    requires(N <= 1000)
    grid(N)
    values(x, 0, M)
    hi = load(x, bid(0) + 1, shape=1, pad=0)
    store(out, bid(0), load(t, {what}))
""",
        3,
    )
    assert verdict.kind == ("accepted" if right else "refused_confirmed") and not verdict.wrong_examples, verdict


COLLIDING = """def k(x: In[i32, N], z: In[i32, N], t: In[f32, M], out: InOut[f32, 8]):
    grid(1)
    a = where(load(x, 0, shape=8, pad=0) > 0, 1, 0)
    b = where(load(z, 0, shape=8, pad=0) > 0, 1, 0)
    s = cumsum(a, 0, exclusive=True)
    r = cumsum({second}, 0, exclusive=True)
    store(out, 0, gather(t, (s - r,)))
"""


def test_a_sum_of_what_is_padded_is_no_example(tmp_path: Path) -> None:
    """Elements outside of a tensor have no contents, which a difference of sums could come from."""
    assert verdict_of(tmp_path, HEAD + COLLIDING.format(second="a"), 3).kind == "accepted"
    verdict = verdict_of(tmp_path, HEAD + COLLIDING.format(second="b"), 3)
    assert verdict.codes == ("E0303",) and not verdict.wrong_examples, verdict
    (example,) = (one.counterexample for one in verdict.diagnostics)
    assert example is not None and "every other element of `x` is" in example.note
    assert not any(key in example.values for key in ("x[7]", "z[7]") if example.dims["N"] < 8)


SEGMENTS = """def k(x: In[i32, N], out: InOut[f32, M]):
    requires(M <= 1000, N <= 100)
    grid(N)
    values(x, 0, M, sorted=True)
    hi = load(x, bid(0) + 1, shape=2, pad=5)
    for j in range(load(x, bid(0)), minimum(sum(hi) // 2, M)):
        store(out, j, 1.0)
"""


def test_an_iteration_that_a_run_does_not_reach_is_not_shown(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, HEAD + SEGMENTS, 3)
    assert verdict.codes and not verdict.wrong_examples, verdict
