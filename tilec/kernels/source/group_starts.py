"""Where groups begin, and how many tiles of rows lie before each."""

from typing import Literal

from grouped_parts import LIMIT, TILE, X

import tilec as tl


@tl.kernel
def group_starts(
    offsets: tl.In[tl.i32, Literal["X + 1"]],
    begins: tl.Out[tl.i32, Literal["X + 2"]],
    before: tl.Out[tl.i32, Literal["X + 2"]],
    T: tl.i32,
    *,
    BLOCK: tl.Const,
):
    """Group g has rows `begins[g]` to `begins[g + 1] - 1` and tiles `before[g]` to `before[g + 1] - 1`, of TILE rows from its
    first row on. Group X has the rows after the last offset. Offsets are not trusted: they are clamped to the rows, and none is
    less than the one before it."""
    tl.requires(X <= 65536, T >= 1, T <= LIMIT)
    tl.grid(1)
    high, low, tiles = tl.i32(0), tl.i32(0), tl.i32(0)
    for i in range(tl.cdiv(X + 2, BLOCK)):
        own = tl.load(offsets, i, shape=BLOCK, pad=2147483647)
        own = tl.where(i * BLOCK + tl.arange(BLOCK) == 0, 0, tl.clamp(own, 0, T))
        last = tl.load(offsets, offset=i * BLOCK - 1, shape=BLOCK, pad=2147483647)
        last = tl.where(i * BLOCK + tl.arange(BLOCK) <= 1, 0, tl.clamp(last, 0, T))
        own, last = tl.maximum(tl.cummax(own, 0), high), tl.maximum(tl.cummax(last, 0), low)
        count = (own - last + (TILE - 1)) // TILE
        tl.store(begins, i, own, mask=True)
        tl.store(before, i, tiles + tl.cumsum(count, 0), mask=True)
        high, low, tiles = tl.max(own), tl.max(last), tiles + tl.sum(count)
