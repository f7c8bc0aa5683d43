"""How often each number occurs."""

from counting import BINS, N, count, is_in

import tilec as tl


class L(tl.Element):
    """i32 or i64"""


@tl.function
def number(x: tl.Tensor, tile: int, BLOCK: int) -> tl.Tile:
    """A tile of numbers, -1 for those that no bin can have."""
    v = tl.load(x, tile, shape=BLOCK, pad=-1)
    return tl.where((v >= 0) & (v < BINS), v, -1).astype(tl.i32)


@tl.kernel
def bincount(
    x: tl.In[L, N],
    counts: tl.Atomic[tl.i32, BINS],
    *,
    L: tl.Const,
    FEW: tl.Const,
    TILES: tl.Const,
    BLOCK: tl.Const,
):
    """`counts[b]` grows by the number of x that are b; others do not count. A block counts TILES tiles of BLOCK numbers.

    If there are at most FEW bins, it counts in a tile with a column for each, and adds once to each bin; if FEW is 0, it adds
    for each number."""
    tl.requires(FEW == 0 or BINS <= FEW)
    tl.requires(N <= 1073741824)
    tl.grid(tl.cdiv(N, TILES * BLOCK))
    if FEW:
        found = tl.zeros((BLOCK, FEW), tl.i32)
        for j in range(TILES):
            found = found + is_in(number(x, tl.bid(0) * TILES + j, BLOCK), FEW)
        tl.atomic_add(counts, 0, tl.sum(found, axis=0), mask=True)
    else:
        for j in range(TILES):
            count(counts, number(x, tl.bid(0) * TILES + j, BLOCK))
