"""What all ranks have, one after the other along the first axis, in each of them."""

from typing import Literal

import tilec as tl

from .dims import E, N, T
from .rank_dims import BLOCKS, MOST_TILES, RANKS


class PARTS(tl.Dim):
    """parts that a rank has"""


@tl.kernel
def all_gather(
    x: tl.Peer[E, RANKS, PARTS, T, N],
    out: tl.Out[E, Literal["RANKS * PARTS"], T, N],
    signals: tl.Signal[RANKS, BLOCKS],
    rank: tl.i32,
    *,
    E: tl.Const,
    RANKS: tl.Const,
    PARTS: tl.Const,
    BLOCKS: tl.Const,
    TOKENS: tl.Const,
    BLOCK: tl.Const,
):
    """`out[r * PARTS + p]` is part `p` of rank `r`. A block has a tile of every part of every rank in flight at once: one that
    took them one by one would wait for the other GPU's memory once a part."""
    tl.grid(BLOCKS)
    tl.requires(N % BLOCK == 0, tl.cdiv(T, TOKENS) * (N // BLOCK) <= MOST_TILES)
    tl.meet(signals, rank)
    columns = N // BLOCK
    for tile in range(tl.bid(0), tl.cdiv(T, TOKENS) * columns, tl.num_blocks(0)):
        row, column = tile // columns, tile % columns
        parts = ()
        for r in tl.static_range(RANKS):
            for p in tl.static_range(PARTS):
                parts = (*parts, tl.load(x[r], (p, row, column), shape=(1, TOKENS, BLOCK), pad=0))
        for index in tl.static_range(RANKS * PARTS):
            tl.store(out, (index, row, column), parts[index], mask=True)
