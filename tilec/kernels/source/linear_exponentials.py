"""Sums of exponentials of the logits of a linear layer, and the exponentials themselves, tile by tile of the vocabulary."""

from typing import Literal

from linear_parts import E, H, T, V, logits_of_tile

import tilec as tl


@tl.kernel
def linear_exponentials(
    x: tl.In[E, T, H],
    weight: tl.In[E, V, H],
    maxima: tl.Out[tl.f32, Literal["(V + BN - 1) // BN"], Literal["(T + 7) // 8 * 8"]],
    sums: tl.Out[tl.f32, Literal["(V + BN - 1) // BN"], Literal["(T + 7) // 8 * 8"]],
    kept: tl.Out[E, Literal["(V + BN - 1) // BN"], T, Literal["BN"]],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    """As `linear_sums`, and `kept[n, t, v] = 2 ** (logit - largest)` of class `n * BN + v`, rounded to E: 0 past the last one.

    The largest of a tile is kept as 1 exactly. So no share of more than a half is rounded, which would show in its difference
    from 1."""
    tl.requires(H % 8 == 0, T <= 1073741824)
    rows, columns = tl.cdiv(T, BM), tl.cdiv(V, BN)
    tl.grid(rows * columns)
    tl.requires(rows * columns <= 2147483647)
    m, n = tl.bid(0) % rows, tl.bid(0) // rows
    logits = logits_of_tile(x, weight, m, n, BM, BN, BK)
    top = tl.max(logits, axis=1)
    exponentials = tl.exp2(logits - top[:, None], fast=True)
    tl.store(maxima, (n, m), top[None, :], mask=True)
    tl.store(sums, (n, m), tl.sum(exponentials, axis=1)[None, :], mask=True)
    tl.store(kept, (n, m, 0), exponentials.astype(E).reshape((1, BM, BN)), mask=True)
