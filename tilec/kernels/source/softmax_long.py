"""Softmax of rows of any length: a row of one tile is read once, a longer one twice."""

import tilec as tl

LOG2E = 1.4426950408889634
LOWEST = -3.4028234663852886e38
PARTS = 4


class E(tl.Element):
    """bf16, f16 or f32"""


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


@tl.function
def largest(v: tl.Tile) -> tl.Tile:
    """Of each column of eight neighbours in all parts, which one thread holds."""
    return tl.max(tl.max(v, axis=0), axis=1)


@tl.function
def added(v: tl.Tile) -> tl.Tile:
    return tl.sum(tl.sum(v, axis=0), axis=1)


@tl.kernel
def softmax_long(x: tl.In[E, T, N], out: tl.Out[E, T, N], *, E: tl.Const, BLOCK: tl.Const, MULTIPLE: tl.Const):
    """`out[t] = exp(x[t]) / sum(exp(x[t]))`, in f32, rounded once; a block computes a row in tiles of BLOCK elements.

    The first pass keeps the largest element so far of each column that a tile is folded into, and the column's sum of
    `exp(x - largest)`: nothing goes from column to column before the end of the row. The second pass begins with the last tile,
    which is still in registers."""
    assert BLOCK % (PARTS * 8) == 0
    tl.requires(N % MULTIPLE == 0)
    tl.grid(T)
    row, tiles = tl.bid(0), tl.cdiv(N, BLOCK)
    high = largest(tl.full((PARTS, BLOCK // PARTS // 8, 8), LOWEST, tl.f32))
    weight = added(tl.zeros((PARTS, BLOCK // PARTS // 8, 8), tl.f32))
    tile = tl.full((1, BLOCK), -tl.inf, E)
    for j in range(tiles):
        tile = tl.load(x, (row, j), shape=(1, BLOCK), pad=-tl.inf)
        v = tile.reshape((PARTS, BLOCK // PARTS // 8, 8)).astype(tl.f32)
        higher = tl.maximum(high, largest(v))
        shrink = tl.exp2((high - higher) * LOG2E, fast=True)
        weight = weight * shrink + added(tl.exp2((v - higher[None, :, None]) * LOG2E, fast=True))
        high = higher
    top = tl.max(high)
    scale = 1.0 / tl.sum(weight * tl.exp2((high - top) * LOG2E, fast=True))
    tl.store(out, (row, tiles - 1), (tl.exp2((tile.astype(tl.f32) - top) * LOG2E, fast=True) * scale).astype(E), mask=True)
    for j in range(tiles - 1):
        v = tl.load(x, (row, j), shape=(1, BLOCK), pad=-tl.inf).astype(tl.f32)
        tl.store(out, (row, j), (tl.exp2((v - top) * LOG2E, fast=True) * scale).astype(E), mask=True)
