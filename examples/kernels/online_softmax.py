"""Softmax of rows of any length, which are walked along twice."""

import tilec
from tilec import (
    Const,
    Dim,
    Element,
    In,
    Out,
    bid,
    cdiv,
    exp2,
    f32,
    full,
    grid,
    inf,
    load,
    log2,
    max,
    maximum,
    requires,
    store,
    sum,
    zeros,
)

LOWEST = -3.0e38
PARTS = 4
WIDTH = 256
LOG2E = 1.4426950408889634


class E(Element):
    """bf16, f16 or f32"""


class T(Dim):
    """number of rows"""


class N(Dim):
    """elements of a row"""


@tilec.kernel
def online_softmax(x: In[E, T, N], out: Out[E, T, N], *, E: Const, BLOCK: Const):
    """The first pass keeps the largest so far of each column of PARTS rows that a tile is folded into, and the column's sum of
    `exp(x - largest)`: nothing goes from column to column until the row is through."""
    assert BLOCK % (PARTS * WIDTH) == 0
    requires(N % 8 == 0)
    grid(T)
    row = bid(0)
    high = full((BLOCK // PARTS // WIDTH, WIDTH), LOWEST, f32)
    weight = zeros((BLOCK // PARTS // WIDTH, WIDTH), f32)
    for j in range(cdiv(N, BLOCK)):
        v = load(x, (row, j), shape=(1, BLOCK), pad=-inf).reshape((PARTS, BLOCK // PARTS // WIDTH, WIDTH)).astype(f32)
        higher = maximum(high, max(v, axis=0) * LOG2E)
        weight = weight * exp2(high - higher) + sum(exp2(v * LOG2E - higher[None, :, :]), axis=0)
        high = higher
    top = max(high)
    total = top + log2(sum(weight * exp2(high - top)))
    for j in range(cdiv(N, BLOCK)):
        v = load(x, (row, j), shape=(1, BLOCK), pad=-inf).astype(f32)
        store(out, (row, j), exp2(v * LOG2E - total).astype(E), mask=True)
