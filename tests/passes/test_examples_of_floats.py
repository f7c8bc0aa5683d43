"""What a counterexample says of values that are computed from floats: a run of the launch, with the numbers shown in memory,
computes them. Where no such numbers are found there is no launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.passes.texts import verdict_of

HEAD = '''from typing import Literal

from tilec import Dim, In, Out, arange, argmax, argmin, bid, f16, f32, grid, i32, kernel, load, scatter, store, sum, values
from tilec import where


class K(Dim):
    """numbers"""


class M(Dim):
    """columns"""


class N(Dim):
    """rows"""


@kernel
'''
RIGHT = {
    "the first of equal integers": """def k(x: In[i32, N], t: In[f32, Literal[1]], out: Out[f32, N]):
    values(x, 0, 6)
    grid(N)
    v = where(arange(4) == 0, 0, load(x, 0, shape=(4,), pad=0))
    store(out, bid(0), load(t, argmin(v, 0)))
""",
    "no integer is larger": """def k(x: In[i32, N], t: In[f32, Literal[3]], out: Out[f32, N]):
    values(x, 0, 6)
    grid(N)
    v = where(arange(4) == 2, 5, load(x, 0, shape=(4,), pad=0))
    store(out, bid(0), load(t, 2 - argmax(v, 0)))
""",
    "floats of positions": """def k(t: In[f32, Literal[1]], out: Out[f32, N]):
    grid(N)
    v = (arange(4) > 2).astype(f32)
    store(out, bid(0), load(t, 3 - argmax(v, 0)))
""",
    "a sum of floats": """def k(t: In[f32, Literal[8]], out: Out[f32, N]):
    grid(N)
    s = sum(arange(8).astype(f32), 0)
    store(out, bid(0), load(t, (s * 0.1).astype(i32)))
""",
    "lanes of a transposed tile": """def k(x: In[f32, N, Literal[4], Literal[4]], out: Out[f32, N, Literal[4], Literal[4]]):
    grid(N)
    b = bid(0)
    v = load(x, (b, 0, 0), shape=(1, 4, 4)).reshape((4, 4))
    p = arange(4).reshape((4, 1)).broadcast_to((4, 4))
    q = arange(4).reshape((1, 4)).broadcast_to((4, 4))
    scatter(out, (b + 0 * p, where(v > 0.0, p, 9), q), v, mask=True)
    scatter(out, (b + 0 * p, where(v.permute((1, 0)) > 0.0, 9, q), p), v, mask=True)
""",
    "a float whose sum is compared": """def k(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    v = load(x, bid(0))
    if v > 1.0:
        store(out, bid(0), 1.0)
    if not (v + 0.0 > 1.0):
        store(out, bid(0), 2.0)
""",
}
WRONG = {
    "a float of memory": ("E0404", """def k(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    v = load(x, bid(0))
    if v > 3.0:
        store(out, bid(0), 1.0)
    if not (v == 2.0):
        store(out, bid(0), 2.0)
"""),
    "two floats of memory": ("E0404", """def k(x: In[f32, N], z: In[f32, N], out: Out[f32, N]):
    grid(N)
    v, w = load(x, bid(0)), load(z, bid(0))
    if v >= w:
        store(out, bid(0), 1.0)
    if not (w < v):
        store(out, bid(0), 2.0)
"""),
    "NaN": ("E0404", """def k(x: In[f32, N], z: In[f32, N], out: Out[f32, N]):
    grid(N)
    v, w = load(x, bid(0)), load(z, bid(0))
    if not (v >= w):
        store(out, bid(0), 1.0)
    if not (v < w):
        store(out, bid(0), 2.0)
"""),
    "a float parameter": ("E0301", """def k(s: f32, t: In[f32, Literal[1]], out: Out[f32, N]):
    grid(N)
    store(out, bid(0), load(t, where(s < -2.0, 1, 0)))
"""),
    "a converted float": ("E0301", """def k(x: In[f16, N], t: In[f32, Literal[3]], out: Out[f32, N]):
    grid(N)
    i = load(x, bid(0)).astype(i32)
    if i >= 0:
        store(out, bid(0), load(t, i))
    else:
        store(out, bid(0), 0.0)
"""),
    "the position of the largest": ("E0301", """def k(x: In[f32, N, 8], t: In[f32, Literal[7]], out: Out[f32, N]):
    grid(N)
    store(out, bid(0), load(t, argmax(load(x, (bid(0), 0), shape=(1, 8)).reshape((8,)), 0)))
"""),
    "the position of the smallest": ("E0301", """def k(x: In[i32, N, 8], t: In[f32, Literal[7]], out: Out[f32, N]):
    values(x, 2, 5)
    grid(N)
    store(out, bid(0), load(t, argmin(load(x, (bid(0), 0), shape=(1, 8)).reshape((8,)), 0)))
"""),
    "a branch inside of another": ("E0301", """def k(x: In[f32, N], z: In[f32, N], t: In[f32, Literal[2]], out: Out[f32, N]):
    grid(N)
    at = 0
    if load(x, bid(0)) > 2.0:
        if load(z, bid(0)) < load(x, bid(0)):
            at = 2
    store(out, bid(0), load(t, at))
"""),
    "two writes of one iteration": ("E0404", """def k(x: In[f32, N, M], out: Out[f32, N, M]):
    grid(N)
    b = bid(0)
    w = load(x, (b, 0))
    for j in range(M):
        if w > 0.0:
            store(out, (b, j), 1.0)
        w = load(x, (b, j))
        if not (w > 0.0):
            store(out, (b, j), 2.0)
"""),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_no_launch_is_shown_of_a_kernel_that_is_right(name: str, tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, HEAD + RIGHT[name])
    assert verdict.kind in ("accepted", "refused_harmless"), verdict
    assert all(found.counterexample is None for found in verdict.diagnostics), verdict.diagnostics


@pytest.mark.parametrize("name", WRONG)
def test_the_launch_that_is_shown_goes_wrong(name: str, tmp_path: Path) -> None:
    """It does so without numbers of memory that are not shown."""
    code, text = WRONG[name]
    verdict = verdict_of(tmp_path, HEAD + text)
    assert verdict.kind == "refused_confirmed" and not verdict.wrong_examples, verdict
    (found,) = (one for one in verdict.diagnostics if one.code == code)
    assert found.counterexample is not None and (found.counterexample.values or found.counterexample.note), found
