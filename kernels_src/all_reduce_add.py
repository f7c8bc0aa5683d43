"""Sum of what all ranks have, added to the residual of each: an all-reduce with what follows a linear layer by columns."""

import tilec as tl

from .dims import E, N, T
from .rank_dims import BLOCKS, MOST_TILES, RANKS, sum_of_ranks


@tl.kernel
def all_reduce_add(
    x: tl.Peer[E, RANKS, T, N],
    residual: tl.InOut[E, T, N],
    signals: tl.Signal[RANKS, BLOCKS],
    rank: tl.i32,
    *,
    E: tl.Const,
    RANKS: tl.Const,
    BLOCKS: tl.Const,
    TOKENS: tl.Const,
    BLOCK: tl.Const,
):
    """`residual` grows by the sum of `x` of all ranks: added in f32 in the order of ranks, the residual last, rounded once."""
    tl.grid(BLOCKS)
    tl.requires(N % BLOCK == 0, tl.cdiv(T, TOKENS) * (N // BLOCK) <= MOST_TILES)
    tl.meet(signals, rank)
    columns = N // BLOCK
    for tile in range(tl.bid(0), tl.cdiv(T, TOKENS) * columns, tl.num_blocks(0)):
        row, column = tile // columns, tile % columns
        old = tl.load(residual, (row, column), shape=(TOKENS, BLOCK), pad=0).astype(tl.f32)
        total = sum_of_ranks(x, row, column, TOKENS, BLOCK) + old
        tl.store(residual, (row, column), tl.astype(total, E), mask=True)
