"""Sums of exponentials of the logits of a linear layer, tile by tile of the vocabulary; no logits are stored."""

from typing import Literal

from linear_parts import E, H, T, V, logits_of_tile

import tilec as tl


@tl.kernel
def linear_sums(
    x: tl.In[E, T, H],
    weight: tl.In[E, V, H],
    maxima: tl.Out[tl.f32, Literal["(V + BN - 1) // BN"], Literal["(T + 7) // 8 * 8"]],
    sums: tl.Out[tl.f32, Literal["(V + BN - 1) // BN"], Literal["(T + 7) // 8 * 8"]],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    """Of each tile of BN classes the largest of `x @ weight.T` in units of log 2, and the sum of `2 ** (logit - largest)`; rows
    of both begin at whole vectors, and have anything past the last token.

    Blocks that follow each other have the same classes, so that a tile of `weight` is read from memory once."""
    tl.requires(H % 8 == 0, T <= 1073741824)
    rows, columns = tl.cdiv(T, BM), tl.cdiv(V, BN)
    tl.grid(rows * columns)
    tl.requires(rows * columns <= 2147483647)
    m, n = tl.bid(0) % rows, tl.bid(0) // rows
    logits = logits_of_tile(x, weight, m, n, BM, BN, BK)
    top = tl.max(logits, axis=1)
    total = tl.sum(tl.exp2(logits - top[:, None], fast=True), axis=1)
    tl.store(maxima, (n, m), top[None, :], mask=True)
    tl.store(sums, (n, m), total[None, :], mask=True)
