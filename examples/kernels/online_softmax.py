"""Softmax of rows of any length: those of one tile are read once, longer ones are walked along twice."""

import tilec
from tilec import (
    Const,
    Dim,
    Element,
    In,
    Out,
    Tile,
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
LOG2E = 1.4426950408889634


class E(Element):
    """bf16, f16 or f32"""


class T(Dim):
    """number of rows"""


class N(Dim):
    """elements of a row"""


@tilec.function
def largest(v: Tile) -> Tile:
    """Of each column of eight neighbours in all parts, which one thread holds."""
    return max(max(v, axis=0), axis=1)


@tilec.function
def added(v: Tile) -> Tile:
    return sum(sum(v, axis=0), axis=1)


@tilec.kernel
def online_softmax(x: In[E, T, N], out: Out[E, T, N], *, E: Const, BLOCK: Const):
    """The first pass keeps the largest so far of each column that a tile is folded into, and the column's sum of
    `exp(x - largest)`: nothing goes from column to column until the row is through. The second begins with the last tile, which
    is still there."""
    assert BLOCK % (PARTS * 8) == 0
    requires(N % 8 == 0)
    grid(T)
    row, tiles = bid(0), cdiv(N, BLOCK)
    high = largest(full((PARTS, BLOCK // PARTS // 8, 8), LOWEST, f32))
    weight = added(zeros((PARTS, BLOCK // PARTS // 8, 8), f32))
    tile = full((1, BLOCK), -inf, E)
    for j in range(tiles):
        tile = load(x, (row, j), shape=(1, BLOCK), pad=-inf)
        v = tile.reshape((PARTS, BLOCK // PARTS // 8, 8)).astype(f32)
        higher = maximum(high, largest(v) * LOG2E)
        weight = weight * exp2(high - higher) + added(exp2(v * LOG2E - higher[None, :, None]))
        high = higher
    top = max(high)
    total = top + log2(sum(weight * exp2(high - top)))
    store(out, (row, tiles - 1), exp2(tile.astype(f32) * LOG2E - total).astype(E), mask=True)
    for j in range(tiles - 1):
        v = load(x, (row, j), shape=(1, BLOCK), pad=-inf).astype(f32)
        store(out, (row, j), exp2(v * LOG2E - total).astype(E), mask=True)
