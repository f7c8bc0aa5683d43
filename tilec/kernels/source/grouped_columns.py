"""The rows of each tile of groups as columns, padded with zeros: a left operand whose depth is rows."""

from typing import Literal

from grouped_parts import TILE, E, N, S, T

import tilec as tl


@tl.kernel
def grouped_columns(
    dout: tl.In[E, T, N],
    starts: tl.In[tl.i32, S],
    tiles: tl.Out[E, S, N, Literal["TILE"]],
    *,
    E: tl.Const,
    BN: tl.Const,
):
    """`tiles[m, n, i] = dout[starts[m] + i, n]` for rows up to `starts[m + 1] - 1`, else 0; `starts` is of `group_blocks`, and
    the last tile is 0."""
    tl.requires(N % 8 == 0, T <= 16777216)
    columns = tl.cdiv(N, BN)
    tl.grid(S * columns)
    tl.requires(S * columns <= 2147483647)
    m, n = tl.bid(0) // columns, tl.bid(0) % columns
    begin = tl.clamp(tl.load(starts, m), 0, T)
    end = tl.clamp(tl.load(starts, min(m + 1, S - 1)), 0, T)
    rows = tl.load(dout, offset=(begin, n * BN), shape=(TILE, BN), pad=0)
    row = (tl.arange(TILE) + begin)[:, None]
    tl.store(tiles, (m, n, 0), tl.where(row < end, rows, 0.0).T[None, :, :], mask=True)
