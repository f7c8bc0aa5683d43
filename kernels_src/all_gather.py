"""What all ranks have, one after the other along the first axis, in each of them."""

from typing import Literal

import tilec as tl

from .dims import E, N, T
from .rank_dims import BLOCKS, MOST_TILES, RANKS

MOST_PARTS = 1 << 16


class P(tl.Dim):
    """parts that a rank has"""


@tl.kernel
def all_gather(
    x: tl.Peer[E, RANKS, P, T, N],
    out: tl.Out[E, Literal["RANKS * P"], T, N],
    signals: tl.Signal[RANKS, BLOCKS],
    rank: tl.i32,
    *,
    E: tl.Const,
    RANKS: tl.Const,
    BLOCKS: tl.Const,
    TOKENS: tl.Const,
    BLOCK: tl.Const,
):
    """`out[r * P + p]` is part `p` of rank `r`."""
    tl.grid(BLOCKS)
    tl.requires(N % BLOCK == 0, tl.cdiv(T, TOKENS) * (N // BLOCK) <= MOST_TILES, RANKS * P <= MOST_PARTS)
    tl.meet(signals, rank)
    columns = N // BLOCK
    for tile in range(tl.bid(0), tl.cdiv(T, TOKENS) * columns, tl.num_blocks(0)):
        row, column = tile // columns, tile % columns
        for p in range(P):
            for r in tl.static_range(RANKS):
                part = tl.load(x[r], (p, row, column), shape=(1, TOKENS, BLOCK), pad=0)
                tl.store(out, (r * P + p, row, column), part, mask=True)
