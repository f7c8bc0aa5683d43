"""Sum of what all ranks have, in each of them: a one-shot all-reduce, which reads the memory of all peers."""

import tilec as tl

from .dims import E, N, T
from .rank_dims import BLOCKS, MOST_TILES, RANKS, sum_of_ranks


@tl.kernel
def all_reduce(
    x: tl.Peer[E, RANKS, T, N],
    out: tl.Out[E, T, N],
    signals: tl.Signal[RANKS, BLOCKS],
    rank: tl.i32,
    *,
    E: tl.Const,
    RANKS: tl.Const,
    BLOCKS: tl.Const,
    TOKENS: tl.Const,
    BLOCK: tl.Const,
):
    """`out` is the sum of `x` of all ranks, added in f32 in the order of ranks and rounded once, so all ranks have the same."""
    tl.grid(BLOCKS)
    tl.requires(N % BLOCK == 0, tl.cdiv(T, TOKENS) * (N // BLOCK) <= MOST_TILES)
    tl.meet(signals, rank)
    columns = N // BLOCK
    for tile in range(tl.bid(0), tl.cdiv(T, TOKENS) * columns, tl.num_blocks(0)):
        row, column = tile // columns, tile % columns
        total = sum_of_ranks(x, row, column, TOKENS, BLOCK)
        tl.store(out, (row, column), tl.astype(total, E), mask=True)
