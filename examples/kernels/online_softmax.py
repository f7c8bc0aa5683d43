"""Softmax of rows of any length, which are walked along twice."""

import tilec
from tilec import Const, Dim, Element, In, Out, bid, cdiv, exp2, f32, grid, inf, load, max, maximum, requires, store, sum, zeros

LOWEST = -3.0e38
LOG2E = 1.4426950408889634


class E(Element):
    """bf16, f16 or f32"""


class T(Dim):
    """number of rows"""


class N(Dim):
    """elements of a row"""


@tilec.kernel
def online_softmax(x: In[E, T, N], out: Out[E, T, N], *, E: Const, BLOCK: Const):
    """The first pass keeps the largest so far, and per column of the tile the sum of `exp(x - largest)`."""
    requires(N % 8 == 0)
    grid(T)
    row = bid(0)
    high = f32(LOWEST)
    weight = zeros((1, BLOCK), f32)
    for j in range(cdiv(N, BLOCK)):
        v = load(x, (row, j), shape=(1, BLOCK), pad=-inf).astype(f32)
        higher = maximum(high, max(v) * LOG2E)
        weight = weight * exp2(high - higher) + exp2(v * LOG2E - higher)
        high = higher
    scale = 1.0 / sum(weight)
    for j in range(cdiv(N, BLOCK)):
        v = load(x, (row, j), shape=(1, BLOCK), pad=-inf).astype(f32)
        store(out, (row, j), (exp2(v * LOG2E - high) * scale).astype(E), mask=True)
