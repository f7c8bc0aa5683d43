"""Nothing but the meet of all ranks: what ends a step, so that no rank begins the next one while another may still read."""

import tilec as tl

from .rank_dims import BLOCKS, RANKS


@tl.kernel
def rank_meet(signals: tl.Signal[RANKS, BLOCKS], rank: tl.i32, *, RANKS: tl.Const, BLOCKS: tl.Const):
    """Returns once all earlier launches of all ranks are complete."""
    tl.grid(1)
    tl.meet(signals, rank)
