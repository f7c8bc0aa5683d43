"""How often experts are chosen: the first step of a counting sort."""

from experts import N, P, X, is_chosen

import tilec as tl


@tl.kernel
def expert_counts(
    ids: tl.In[tl.i32, N],
    counts: tl.Out[tl.i32, P, X],
    totals: tl.Atomic[tl.i32, X],
    *,
    BLOCK: tl.Const,
    EXPERTS: tl.Const,
):
    """`counts[p, e]` is how often tile p of BLOCK choices has expert e, and is added to `totals[e]`. There are at most
    EXPERTS."""
    tl.requires(X <= EXPERTS and tl.cdiv(N, BLOCK) == P)
    tl.grid(P)
    tile = tl.bid(0)
    count = tl.sum(is_chosen(ids, tile, BLOCK, EXPERTS), axis=0)
    tl.store(counts, (tile, 0), count[None, :], mask=True)
    tl.atomic_add(totals, 0, count, mask=True)
