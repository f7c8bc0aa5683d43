"""Coverage by named writers is not proven from facts that nothing satisfies: each kernel leaves an element unwritten in the
launch of its name, where a sum, a choice of bits or an element of an empty tensor has no value at the writer that is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.passes.prover import prove

HEAD = '''"""Writes that cover less than they seem to."""
from tilec import Dim, In, Out, arange, bid, cdiv, cumsum, f32, grid, i32, kernel, load, minimum, requires, scatter, sort, store
from tilec import take, u8, values, where, zeros


class M(Dim):
    """rows"""


class K(Dim):
    """elements that are read"""


class N(Dim):
    """elements of a row"""


@kernel
'''
BITS = """def k(x: In[i32, M], out: Out[f32, M, N]):
    grid(M)
    v = load(x, bid(0))
    for j in range(4):
        if {first}:
            store(out, (bid(0), j), zeros((1, 1), f32), mask=True)
        if {second}:
            store(out, (bid(0), j), zeros((1, 1), f32), mask=True)
"""
SUMS = """def k(x: In[i32, 4], out: Out[f32, N]):
    grid(1)
    s = cumsum(where(load(x, 0, shape=4) > 0, 1, 0), 0, exclusive=True)
    scatter(out, where(s < 2, arange(4), N), zeros(4, f32), mask=True)
    scatter(out, where(s >= 2, arange(4), N), zeros(4, f32), mask=True)
"""
KERNELS = {
    "exchanged bits, M = 4, N = 5": BITS.format(first="(v ^ j) < 3", second="(v ^ j) >= 3"),
    "powers of two, M = 3, N = 6": BITS.format(first="v < (1 << j)", second="v >= (1 << j)"),
    "shifted bits, M = 4, N = 5": BITS.format(first="(v >> j) % 2 == 0", second="(v >> j) % 2 != 0"),
    "one write, N = 3, S = 40": """def k(x: In[i32, 4], out: Out[f32, N, 8], S: i32):
    grid(1)
    requires(S >= 17, S <= 40)
    p = (arange(4) + 4)[None, :] + zeros((8, 4), i32)
    q = arange(8)[:, None] + ((1 << arange(4)) // S)[None, :]
    scatter(out, (p, q), zeros((8, 4), f32), mask=True)
""",
    "sums, N = 15": SUMS,
    "sums in one write, N = 3, S = 40": """def k(x: In[i32, 16], out: Out[f32, N, 8], S: i32):
    grid(1)
    requires(N <= 20, S >= 17, S <= 40)
    s = cumsum(where(load(x, 0, shape=16) > 0, 1, 0), 0, exclusive=True)
    p = (arange(16) + 4)[None, :] + zeros((8, 16), i32)
    q = arange(8)[:, None] + (s // S)[None, :]
    scatter(out, (p, q), zeros((8, 16), f32), mask=True)
""",
    "sorted, N = 3": """def k(x: In[u8, 2], out: Out[f32, N]):
    grid(1)
    v = sort(load(x, 0, shape=2).astype(i32), 0)
    z = zeros(2, i32)
    c = v + take(v, z, 0) + take(v, z + 1, 0)
    scatter(out, where(c < 100, arange(2), N), zeros(2, f32), mask=True)
    scatter(out, where(c >= 100, arange(2), N), zeros(2, f32), mask=True)
""",
    "an empty tensor, M = 3, N = 4, K = 0, V = 0": """def k(x: In[i32, K], out: Out[f32, M, N], V: i32, each: i32):
    requires(0 <= V, V <= 100, 1 <= each, each <= 100, N <= 1000, K <= 1000, M <= 1000)
    requires(K >= M or V == 0)
    values(x, 0, V)
    grid(M, cdiv(N, each))
    b, s = bid(0), bid(1)
    if b < K:
        t = load(x, b)
        for j in range(s * each, minimum((s + 1) * each, N)):
            if t < 5:
                store(out, (b, j), 1.0)
            if t >= 5:
                store(out, (b, j), 2.0)
""",
    "a choice without cases, M = 1": """def k(x: In[i32, M], out: Out[f32, M, 4]):
    grid(M)
    v = load(x, bid(0))
    for j in range(5):
        if v < (1 << j):
            store(out, (bid(0), j + 4), zeros((1, 1), f32), mask=True)
        if v >= (1 << j):
            store(out, (bid(0), j + 4), zeros((1, 1), f32), mask=True)
""",
}


@pytest.mark.parametrize("name", KERNELS)
def test_what_leaves_an_element_unwritten_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text(HEAD + KERNELS[name], encoding="utf-8")
    with pytest.raises(CompileError) as refused:
        prove(load_kernel(path, {}, root=tmp_path))
    assert {one.code for one in refused.value.diagnostics} <= {"E0403", "E0306"}
