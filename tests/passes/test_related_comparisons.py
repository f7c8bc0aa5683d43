"""Comparisons of floats in different places of a kernel: two that are each other's opposite decide one branch, and others do
not. Both verdicts are checked by running every block at small sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.passes.texts import verdict_of

HEAD = '''from tilec import Dim, In, InOut, Out, arange, bf16, bid, f8e4m3, f8e5m2, f16, f32, grid, kernel, load, scatter, store
from tilec import where


class K(Dim):
    """columns"""


class M(Dim):
    """columns of a table"""


class N(Dim):
    """rows"""


@kernel
'''
TWO_LOOPS = """def k(x: In[{dtype}, N, 4], z: In[{dtype}, N, 4], s: f32, out: Out[f32, N, K]):
    grid(N)
    b = bid(0)
    v, w, u = load(x, (b, 0)), load(z, (b, 0)), load(z, (b, 1))
    for j in range(K):
        if {first}:
            store(out, (b, j), 1.0)
    for j in range(K):
        if {second}:
            store(out, (b, j), 2.0)
"""
OPPOSITE = [
    ("v > 0.0", "not (v > 0.0)", "f32"),
    ("v >= 0.5", "not (0.5 <= v)", "f32"),
    ("v > 0.1", "not (0.1 < v)", "f16"),  # no float is 0.1: what it is rounded to is one number
    ("v > 9.0", "not (v > 9.0)", "f8e4m3"),
    ("v > 2048.0", "not (2048.0 < v)", "f16"),
    ("v != 0.0", "v == -0.0", "f32"),
    ("v > w", "not (w < v)", "f32"),
    ("v == w", "w != v", "f32"),
    ("v <= w", "not (w >= v)", "bf16"),
    ("v > s", "not (s < v)", "f32"),
]
NOT_OPPOSITE = [
    ("v > 0.0", "v <= 0.0", "f32"),  # NaN
    ("v > 0.0", "v < 0.0", "f32"),
    ("v >= 0.0", "not (v > -0.0)", "f32"),
    ("v > 0.5", "not (v > 0.25)", "bf16"),
    ("v >= 448.0", "not (v > 448.0)", "f8e4m3"),
    ("v > w", "v <= w", "f32"),
    ("v > w", "w > v", "f32"),
    ("v > w", "not (v < w)", "f32"),
    ("v == w", "not (v == u)", "f32"),
    ("v > w", "not (v > u)", "f32"),
    ("v != w", "w != v", "f32"),
    ("v > s", "s > v", "f32"),
    ("v > s", "v <= s", "f32"),
    ('v < float("inf")', 'not (v <= float("inf"))', "f32"),
]
INDEPENDENT = [  # of numbers that a dtype may round to one, and of results of arithmetic
    ("v >= 2048.0", "not (v > 2049.0)", "f16"),
    ("v > 17.0", "not (v >= 18.0)", "f8e5m2"),
    ("v > 256.0", "not (v >= 257.0)", "bf16"),
    ("v > 0.1", "not (v.astype(f32) > 0.1)", "bf16"),
    ("v > w", "not (v + 0.0 > w)", "f32"),
]
OTHER_EXECUTIONS = {
    "other elements": """def k(x: In[f32, N, M], out: Out[f32, N, M]):
    grid(N)
    b = bid(0)
    for j in range(M):
        v = load(x, (b, j))
        if v > 0.0:
            store(out, (b, j), 1.0)
    for j in range(M):
        v = load(x, (b, M - 1 - j))
        if not (v > 0.0):
            store(out, (b, j), 2.0)
""",
    "a carried float": """def k(x: In[f32, N, M], out: Out[f32, N, M]):
    grid(N)
    b = bid(0)
    w = load(x, (b, 0))
    for j in range(M):
        if w > 0.0:
            store(out, (b, j), 1.0)
        w = load(x, (b, j))
        if not (w > 0.0):
            store(out, (b, j), 2.0)
""",
    "what a loop leaves": """def k(x: In[f32, N, M], out: Out[f32, N, M]):
    grid(N)
    b = bid(0)
    w = load(x, (b, 0))
    for j in range(M):
        if w > 0.0:
            store(out, (b, j), 1.0)
        w = load(x, (b, j))
    for j in range(M):
        if not (w > 0.0):
            store(out, (b, j), 2.0)
""",
    "read again after a write": """def k(x: InOut[f32, N, 4], out: Out[f32, N, K]):
    grid(N)
    b = bid(0)
    v = load(x, (b, 0))
    for j in range(K):
        if v > 0.0:
            store(out, (b, j), 1.0)
    store(x, (b, 0), 0.0 - v)
    v = load(x, (b, 0))
    for j in range(K):
        if not (v > 0.0):
            store(out, (b, j), 2.0)
""",
    "other rows": """def k(x: In[f32, N, M], z: In[f32, N, M], out: Out[f32, N, M]):
    grid(N)
    b = bid(0)
    w = load(z, (b, 0))
    for i in range(M):
        v = load(x, (b, i))
        if v > w:
            store(out, (b, i), 1.0)
        if not (w < v):
            store(out, (b, M - 1 - i), 2.0)
""",
    "other lanes": """def k(x: In[f32, N, 4], z: In[f32, N, 4], out: Out[f32, N, 4]):
    grid(N)
    b = bid(0)
    v = load(x, (b, 0), shape=(1, 4)).reshape((4,))
    w = load(z, (b, 0), shape=(1, 4)).reshape((4,))
    p = arange(4)
    scatter(out, (b + 0 * p, where(v > w, p, 9)), v, mask=True)
    scatter(out, (b + 0 * p, where(v > w, 9, 3 - p)), v, mask=True)
""",
    "one float of another block": """def k(x: In[f32, N], out: Out[f32, 1]):
    grid(N)
    v, w = load(x, bid(0)), load(x, (bid(0) + 1) % N)
    if v > w:
        store(out, 0, 1.0)
    if not (w >= v):
        store(out, 0, 2.0)
""",
    "two pairs and a class of one float": """def k(x: In[f32, N, 4], out: Out[f32, N, K]):
    grid(N)
    b = bid(0)
    v, w, u = load(x, (b, 0)), load(x, (b, 1)), load(x, (b, 2))
    for i in range(K):
        if v > w and not (u > w) and w > 0.0:
            store(out, (b, i), 1.0)
    for i in range(K):
        if not (w < v):
            store(out, (b, i), 2.0)
        if w < u and v > w:
            store(out, (b, i), 3.0)
        if v > w and not (u > w) and not (w > 1.0):
            store(out, (b, i), 4.0)
""",
}


@pytest.mark.parametrize(("first", "second", "dtype"), OPPOSITE)
def test_opposite_conditions_write_each_element_once(first: str, second: str, dtype: str, tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, HEAD + TWO_LOOPS.format(first=first, second=second, dtype=dtype))
    assert verdict.kind == "accepted" and verdict.launches, verdict


@pytest.mark.parametrize(("first", "second", "dtype"), NOT_OPPOSITE)
def test_other_conditions_leave_out_elements_or_write_them_twice(first: str, second: str, dtype: str, tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, HEAD + TWO_LOOPS.format(first=first, second=second, dtype=dtype))
    assert verdict.kind == "refused_confirmed" and not verdict.wrong_examples, verdict


@pytest.mark.parametrize(("first", "second", "dtype"), INDEPENDENT)
def test_numbers_that_may_be_rounded_are_not_related(first: str, second: str, dtype: str, tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, HEAD + TWO_LOOPS.format(first=first, second=second, dtype=dtype))
    assert verdict.codes == ("E0306",), verdict


@pytest.mark.parametrize("name", OTHER_EXECUTIONS)
def test_comparisons_of_other_executions_are_not_related(name: str, tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, HEAD + OTHER_EXECUTIONS[name])
    assert verdict.kind == "refused_confirmed" and not verdict.wrong_examples, verdict
