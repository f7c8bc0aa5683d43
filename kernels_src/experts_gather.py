"""Rows of activations in the order of experts: the last step of a counting sort, which moves the rows."""

from typing import Literal

import tilec as tl

from .dims import E, H, T
from .experts_dims import C, X
from .experts_tiling import P, S


@tl.kernel
def experts_gather(
    x: tl.In[E, T, H],
    experts: tl.In[tl.i32, T, C],
    order: tl.In[tl.i32, P, Literal["BLOCK"]],
    ranks: tl.In[tl.i32, P, Literal["BLOCK"]],
    counts: tl.In[tl.i32, X, P],
    begins: tl.In[tl.i32, X, P],
    starts: tl.In[tl.i32, X, P],
    tiles: tl.In[tl.i32, S],
    out: tl.Out[E, Literal["S * BM"], H],
    places: tl.Out[tl.i32, T, C],
    *,
    E: tl.Const,
    H: tl.Const,
    C: tl.Const,
    X: tl.Const,
    BM: tl.Const,
    BLOCK: tl.Const,
    ROWS: tl.Const,
    CHUNKS: tl.Const,
    COLUMNS: tl.Const,
):
    """`out[places[t, c]] = x[t]`; rows of nobody are 0. Other integers are of `experts_sort` and `experts_tiles`.

    A block has ROWS rows of a tile. The chunk of a row is the last one whose choices of the tile's expert begin at that row or
    before. The block has ROWS choices besides, whose places it writes."""
    assert BM % ROWS == 0
    assert ROWS % C == 0
    assert H % COLUMNS == 0
    tl.requires(T * C <= S * BM, S * BM <= 1073741824, tl.cdiv(T, BLOCK // C) == P, P <= 1048576)
    tl.values(experts, 0, X)
    tl.values(tiles, 0, X + 1)
    tl.ensures(places, 0, S * BM)
    tl.grid(S * (BM // ROWS))
    block = tl.bid(0)
    expert = tl.load(tiles, block // (BM // ROWS))
    chosen = tl.load(experts, (block, 0), shape=(ROWS // C, C), pad=0)
    number = block * ROWS + tl.reshape(tl.arange(ROWS), (ROWS // C, C))
    rank = tl.clamp(tl.gather(ranks, (number // BLOCK, number % BLOCK), pad=0), 0, BLOCK)
    first = tl.clamp(tl.gather(starts, (chosen, number // BLOCK), pad=0), 0, S * BM)
    tl.store(places, (block, 0), tl.minimum(first + rank, S * BM - 1), mask=True)
    row = block * ROWS + tl.arange(ROWS)
    found = tl.zeros((ROWS,), tl.i32)
    for i in range(tl.cdiv(P, CHUNKS)):
        start = tl.load(starts, offset=(expert, i * CHUNKS), shape=(1, CHUNKS), pad=2147483647)
        found = tl.minimum(found + tl.sum(tl.where(start <= row[:, None], 1, 0), axis=1), P)
    chunk = tl.minimum(found - 1, 1048575)
    own = row - tl.clamp(tl.gather(starts, (expert, chunk), pad=0), 0, S * BM)
    is_row = (own >= 0) & (own < tl.gather(counts, (expert, chunk), pad=0))
    begin = tl.clamp(tl.gather(begins, (expert, chunk), pad=0), 0, BLOCK)
    choice = tl.gather(order, (chunk, own + begin), pad=0)
    token = tl.where(is_row, chunk * (BLOCK // C) + choice // C, T)[:, None]
    for j in range(H // COLUMNS):
        columns = (j * COLUMNS + tl.arange(COLUMNS))[None, :]
        tl.store(out, (block, j), tl.gather(x, (token, columns), pad=0))
