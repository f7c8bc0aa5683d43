"""Rows in the order of experts, of few choices: `experts_sort` and `experts_tiles` by one block, which compares each choice
with each."""

import tilec as tl

from .dims import T
from .experts_dims import C
from .experts_tiling import S


@tl.kernel
def experts_slots(
    experts: tl.In[tl.i32, T, C],
    places: tl.Out[tl.i32, T, C],
    tiles: tl.Out[tl.i32, S],
    *,
    C: tl.Const,
    X: tl.Const,
    BM: tl.Const,
    BLOCK: tl.Const,
    TILES: tl.Const,
):
    """`places[t, c]` is the row of a choice, and tile m has BM rows of expert `tiles[m]`, or of nobody if that is X. There are
    at most BLOCK choices; those of an expert keep their order."""
    assert BLOCK % C == 0
    tl.requires(T * C <= BLOCK, S <= 8388608)
    tl.values(experts, 0, X)
    tl.ensures(places, 0, S * BM)
    tl.ensures(tiles, 0, X + 1)
    tl.grid(1)
    i = tl.arange(BLOCK)
    chosen = tl.reshape(tl.load(experts, (0, 0), shape=(BLOCK // C, C), pad=X), (BLOCK,))
    rank = tl.sum(tl.where((chosen[:, None] == chosen[None, :]) & (i[None, :] < i[:, None]), 1, 0), axis=1)
    count = tl.sum(tl.where(chosen[:, None] == tl.arange(X)[None, :], 1, 0), axis=0)
    height = (count + (BM - 1)) // BM
    end = tl.cumsum(height, 0)
    first = tl.take((end - height) * BM, tl.minimum(chosen, X - 1), 0)
    place = tl.clamp(first + rank, 0, S * BM - 1)
    tl.store(places, (0, 0), tl.reshape(place, (BLOCK // C, C)), mask=True)
    for j in range(tl.cdiv(S, TILES)):
        m = j * TILES + tl.arange(TILES)
        before = tl.sum(tl.where(end[:, None] <= m[None, :], 1, 0), axis=0)
        tl.store(tiles, j, tl.minimum(before, X), mask=True)
