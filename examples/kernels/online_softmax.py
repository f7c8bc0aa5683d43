"""Softmax of rows of any length: those of one tile are read once, longer ones are walked along twice."""

import tilec as tl

LOWEST = -3.0e38
PARTS = 4
LOG2E = 1.4426950408889634


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
def online_softmax(x: tl.In[E, T, N], out: tl.Out[E, T, N], *, E: tl.Const, BLOCK: tl.Const):
    """The first pass keeps the largest so far of each column that a tile is folded into, and the column's sum of
    `exp(x - largest)`: nothing goes from column to column until the row is through. The second begins with the last tile, which
    is still there."""
    assert BLOCK % (PARTS * 8) == 0
    tl.requires(N % 8 == 0)
    tl.grid(T)
    row, tiles = tl.bid(0), tl.cdiv(N, BLOCK)
    high = largest(tl.full((PARTS, BLOCK // PARTS // 8, 8), LOWEST, tl.f32))
    weight = added(tl.zeros((PARTS, BLOCK // PARTS // 8, 8), tl.f32))
    tile = tl.full((1, BLOCK), -tl.inf, E)
    for j in range(tiles):
        tile = tl.load(x, (row, j), shape=(1, BLOCK), pad=-tl.inf)
        v = tile.reshape((PARTS, BLOCK // PARTS // 8, 8)).astype(tl.f32)
        higher = tl.maximum(high, largest(v) * LOG2E)
        weight = weight * tl.exp2(high - higher, fast=True) + added(tl.exp2(v * LOG2E - higher[None, :, None], fast=True))
        high = higher
    top = tl.max(high)
    total = top + tl.log2(tl.sum(weight * tl.exp2(high - top, fast=True)), fast=True)
    tl.store(out, (row, tiles - 1), tl.exp2(tile.astype(tl.f32) * LOG2E - total, fast=True).astype(E), mask=True)
    for j in range(tiles - 1):
        v = tl.load(x, (row, j), shape=(1, BLOCK), pad=-tl.inf).astype(tl.f32)
        tl.store(out, (row, j), tl.exp2(v * LOG2E - total, fast=True).astype(E), mask=True)
