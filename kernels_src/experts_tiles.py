"""The expert of each tile of rows, and where each chunk's choices begin: the scan of a counting sort, by one block."""

import tilec as tl

from .experts_dims import X
from .experts_tiling import P, S

LIMIT = 4194304
"""Choices of an expert: no launch has more, which the prover does not know."""


@tl.kernel
def experts_tiles(
    counts: tl.In[tl.i32, X, P],
    starts: tl.Out[tl.i32, X, P],
    tiles: tl.Out[tl.i32, S],
    *,
    X: tl.Const,
    BM: tl.Const,
    CHOICES: tl.Const,
    BLOCK: tl.Const,
):
    """Tile m has BM rows of expert `tiles[m]`, or of nobody if that is X. Choices of expert e in chunk p have the rows from
    `starts[e, p]` on, as many as `counts[e, p]`, which are of `experts_sort`."""
    tl.requires(P * CHOICES <= LIMIT, S <= 8388608)
    tl.ensures(tiles, 0, X + 1)
    tl.grid(1)
    total = tl.zeros((X,), tl.i32)
    for i in range(tl.cdiv(P, BLOCK)):
        count = tl.clamp(tl.load(counts, (0, i), shape=(X, BLOCK), pad=0), 0, CHOICES)
        total = tl.minimum(total + tl.sum(count, axis=1), LIMIT)
    height = (total + (BM - 1)) // BM
    end = tl.cumsum(height, 0)
    for j in range(tl.cdiv(S, BLOCK)):
        m = j * BLOCK + tl.arange(BLOCK)
        before = tl.sum(tl.where(end[:, None] <= m[None, :], 1, 0), axis=0)
        tl.store(tiles, j, tl.minimum(before, X), mask=True)
    start = ((end - height) * BM)[:, None]
    for i in range(tl.cdiv(P, BLOCK)):
        count = tl.clamp(tl.load(counts, (0, i), shape=(X, BLOCK), pad=0), 0, CHOICES)
        tl.store(starts, (0, i), start + tl.cumsum(count, 1, exclusive=True), mask=True)
        start = tl.minimum(start + tl.sum(count, axis=1, keepdims=True), 2 * LIMIT * X)
