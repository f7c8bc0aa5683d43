"""Rows of activations in the order of experts, of few choices: a block looks for its rows among the places of all."""

from typing import Literal

import tilec as tl

from .dims import E, H, T
from .experts_dims import C
from .experts_tiling import S


@tl.kernel
def experts_gather_few(
    x: tl.In[E, T, H],
    places: tl.In[tl.i32, T, C],
    out: tl.Out[E, Literal["S * BM"], H],
    *,
    E: tl.Const,
    H: tl.Const,
    C: tl.Const,
    BM: tl.Const,
    BLOCK: tl.Const,
    ROWS: tl.Const,
    COLUMNS: tl.Const,
):
    """`out[places[t, c]] = x[t]`; rows of nobody are 0. There are at most BLOCK choices, and no two have one row."""
    assert BM % ROWS == 0
    assert H % COLUMNS == 0
    tl.requires(T * C <= BLOCK, S * BM <= 1073741824)
    tl.grid(S * (BM // ROWS))
    block = tl.bid(0)
    row = block * ROWS + tl.arange(ROWS)
    place = tl.reshape(tl.load(places, (0, 0), shape=(BLOCK // C, C), pad=-1), (1, BLOCK))
    token = tl.max(tl.where(place == row[:, None], (tl.arange(BLOCK) // C)[None, :], -1), axis=1)[:, None]
    for j in range(H // COLUMNS):
        columns = (j * COLUMNS + tl.arange(COLUMNS))[None, :]
        tl.store(out, (block, j), tl.gather(x, (token, columns), pad=0))
