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
    exp,
    f32,
    full,
    grid,
    inf,
    load,
    max,
    maximum,
    minimum,
    requires,
    store,
    sum,
    where,
    zeros,
)

LOWEST = -3.0e38


class E(Element):
    """bf16, f16 or f32"""


class T(Dim):
    """number of rows"""


class N(Dim):
    """elements of a row"""


@tilec.kernel
def online_softmax(x: In[E, T, N], out: Out[E, T, N], *, E: Const, BLOCK: Const):
    """The first pass keeps, per column of the tile, the largest so far and the sum of `exp(x - largest)`."""
    requires(N % 8 == 0)
    grid(T)
    row = bid(0)
    high = full((1, BLOCK), LOWEST, f32)
    weight = zeros((1, BLOCK), f32)
    for j in range(cdiv(N, BLOCK)):
        v = load(x, (row, j), shape=(1, BLOCK), pad=-inf).astype(f32)
        less = exp(minimum(v, high) - maximum(v, high))
        weight = where(v > high, weight * less + 1, weight + less)
        high = maximum(high, v)
    top = max(high)
    scale = 1.0 / sum(weight * exp(high - top))
    for j in range(cdiv(N, BLOCK)):
        v = load(x, (row, j), shape=(1, BLOCK), pad=-inf).astype(f32)
        store(out, (row, j), (exp(v - top) * scale).astype(E), mask=True)
