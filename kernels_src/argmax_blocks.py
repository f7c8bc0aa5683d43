"""First half of an argmax of logits that are in memory: the greatest of each part of a row, and where it is."""

import tilec as tl

from .dims import B, E, P, V


@tl.kernel
def argmax_blocks(
    logits: tl.In[E, B, V],
    maxima: tl.Out[tl.f32, B, P],
    indices: tl.Out[tl.i32, B, P],
    *,
    E: tl.Const,
    BLOCK: tl.Const,
    ALIGN: tl.Const,
):
    """The greatest of BLOCK logits, and the lowest column that holds it, as `argmax_reduce` takes them. No NaN in `logits`."""
    tl.grid(P, B)
    tl.requires(V % ALIGN == 0, tl.cdiv(V, BLOCK) == P)
    part, row = tl.bid(0), tl.bid(1)
    v = tl.load(logits, (row, part), shape=(1, BLOCK), pad=-tl.inf).astype(tl.f32)
    tl.store(maxima, (row, part), tl.max(v, axis=1)[:, None])
    tl.store(indices, (row, part), (tl.argmax(v, axis=1) + part * BLOCK)[:, None])
