"""Candidates for sampling: the largest logits of each part of a row, and where they are."""

import tilec as tl

from .dims import B, E, P, V


class K(tl.Dim):
    """candidates per part"""


@tl.kernel
def topk_blocks(
    logits: tl.In[E, B, V],
    top_k: tl.In[tl.i32, B],
    best: tl.Out[tl.f32, B, P, K],
    indices: tl.Out[tl.i32, B, P, K],
    *,
    E: tl.Const,
    BLOCK: tl.Const,
):
    """The `top_k` largest of BLOCK logits, in descending order, the lowest column first among equals, then -inf with column V.
    The `top_k` largest of the row are among the parts'. No NaN or -inf in `logits`."""
    tl.grid(P, B)
    tl.requires(tl.cdiv(V, BLOCK) == P)
    tl.values(top_k, 1, K + 1)
    part, row = tl.bid(0), tl.bid(1)
    count = tl.load(top_k, row)
    v = tl.load(logits, (row, part), shape=(1, BLOCK), pad=-tl.inf).astype(tl.f32)
    columns = tl.arange(BLOCK)[None, :]
    for k in range(K):
        value = tl.full((1,), -tl.inf, tl.f32)
        column = tl.full((1,), 0, tl.i32) + V
        if k < count:
            value, at = tl.max(v, axis=1), tl.argmax(v, axis=1)
            column = tl.where(value > -tl.inf, at + part * BLOCK, V)
            v = tl.where(columns == at[:, None], -tl.inf, v)
        tl.store(best, (row, part, k), tl.reshape(value, (1, 1, 1)))
        tl.store(indices, (row, part, k), tl.reshape(column, (1, 1, 1)))
