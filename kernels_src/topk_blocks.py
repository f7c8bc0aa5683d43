"""Candidates for sampling: the largest logits of each part of a row, and where they are."""

import tilec
from tilec import (
    Const,
    Dim,
    Element,
    In,
    Out,
    arange,
    argmax,
    bid,
    cdiv,
    f32,
    full,
    grid,
    i32,
    inf,
    load,
    max,
    requires,
    reshape,
    store,
    values,
    where,
)


class E(Element):
    """bf16 or f16"""


class B(Dim):
    """number of rows"""


class V(Dim):
    """vocabulary size"""


class P(Dim):
    """parts per row"""


class K(Dim):
    """candidates per part"""


@tilec.kernel
def topk_blocks(
    logits: In[E, B, V], top_k: In[i32, B], best: Out[f32, B, P, K], indices: Out[i32, B, P, K], *, E: Const, BLOCK: Const
):
    """The `top_k` largest of BLOCK logits, in descending order, the lowest column first among equals, then -inf with column V.
    The `top_k` largest of the row are among the parts'. No NaN or -inf in `logits`."""
    grid(P, B)
    requires(cdiv(V, BLOCK) == P)
    values(top_k, 1, K + 1)
    part, row = bid(0), bid(1)
    count = load(top_k, row)
    v = load(logits, (row, part), shape=(1, BLOCK), pad=-inf).astype(f32)
    columns = arange(BLOCK)[None, :]
    for k in range(K):
        value = full((1,), -inf, f32)
        column = full((1,), 0, i32) + V
        if k < count:
            value, at = max(v, axis=1), argmax(v, axis=1)
            column = where(value > -inf, at + part * BLOCK, V)
            v = where(columns == at[:, None], -inf, v)
        store(best, (row, part, k), reshape(value, (1, 1, 1)))
        store(indices, (row, part, k), reshape(column, (1, 1, 1)))
