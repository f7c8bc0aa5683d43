"""First half of an argmax over the vocabulary: the maximum of each part of a row, and where it is."""

import tilec as tl

from .dims import B, E, P, V


@tl.kernel
def argmax_blocks(
    logits: tl.In[E, B, V], maxima: tl.Out[tl.f32, B, P], indices: tl.Out[tl.i32, B, P], *, E: tl.Const, BLOCK: tl.Const
):
    """Reduce BLOCK logits per block to one maximum and its column; the lowest column among equals. No NaN in `logits`."""
    tl.grid(P, B)
    tl.requires(tl.cdiv(V, BLOCK) == P)
    part, row = tl.bid(0), tl.bid(1)
    v = tl.load(logits, (row, part), shape=(1, BLOCK), pad=-tl.inf).astype(tl.f32)
    tl.store(maxima, (row, part), tl.reshape(tl.max(v, axis=1), (1, 1)))
    tl.store(indices, (row, part), tl.reshape(tl.argmax(v, axis=1) + part * BLOCK, (1, 1)))
