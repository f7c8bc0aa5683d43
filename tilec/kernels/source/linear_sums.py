"""Sums of exponentials of the logits of a linear layer, tile by tile of the vocabulary; no logits are stored."""

from typing import Literal

from linear_parts import LOG2E, E, H, T, V

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
    acc = tl.zeros((BM, BN), tl.f32)
    for k in range(tl.cdiv(H, BK)):
        a = tl.load(x, (m, k), shape=(BM, BK), pad=0)
        b = tl.load(weight, (n, k), shape=(BN, BK), pad=0)
        acc = tl.mma(a, b.T, acc)
    logits = tl.where((n * BN + tl.arange(BN))[None, :] < V, acc * LOG2E, -tl.inf)
    top = tl.max(logits, axis=1)
    total = tl.sum(tl.exp2(logits - top[:, None], fast=True), axis=1)
    tl.store(maxima, (n, m), top[None, :], mask=True)
    tl.store(sums, (n, m), total[None, :], mask=True)
