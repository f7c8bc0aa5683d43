"""Sum of what all ranks have, added to the residual of each, and the next norm begun (Zhang and Sennrich, 2019)."""

from typing import Literal

import tilec as tl

from .dims import E, T
from .rank_dims import BLOCKS, MOST_TILES, RANKS, sum_of_ranks


class P(tl.Dim):
    """groups of ROWS outputs"""


@tl.kernel
def all_reduce_add_scaled(
    x: tl.Peer[E, RANKS, T, Literal["P * ROWS"]],
    residual: tl.InOut[E, T, Literal["P * ROWS"]],
    weight: tl.In[E, Literal["P * ROWS"]],
    scaled: tl.Out[E, T, Literal["P * ROWS"]],
    squares: tl.Out[tl.f32, T, P],
    signals: tl.Signal[RANKS, BLOCKS],
    rank: tl.i32,
    *,
    E: tl.Const,
    RANKS: tl.Const,
    BLOCKS: tl.Const,
    ROWS: tl.Const,
    TOKENS: tl.Const,
    BLOCK: tl.Const,
):
    """`residual` as by `all_reduce_add`; `scaled = residual * weight`, and the sum of squares of each group of the residual, as
    `matvec_add_scaled` leaves them."""
    tl.grid(BLOCKS)
    groups = BLOCK // ROWS
    tl.requires(P % groups == 0, tl.cdiv(T, TOKENS) * (P // groups) <= MOST_TILES)
    tl.resident(weight)
    tl.meet(signals, rank)
    columns = P // groups
    for tile in range(tl.bid(0), tl.cdiv(T, TOKENS) * columns, tl.num_blocks(0)):
        row, column = tile // columns, tile % columns
        g = tl.load(weight, column, shape=BLOCK).astype(tl.f32)
        old = tl.load(residual, (row, column), shape=(TOKENS, BLOCK), pad=0).astype(tl.f32)
        total = tl.astype(sum_of_ranks(x, row, column, TOKENS, BLOCK) + old, E)
        tl.store(residual, (row, column), total, mask=True)
        v = total.astype(tl.f32)
        tl.store(scaled, (row, column), tl.astype(v * g[None, :], E), mask=True)
        tl.store(squares, (row, column), tl.sum((v * v).reshape(TOKENS, groups, ROWS), axis=2), mask=True)
