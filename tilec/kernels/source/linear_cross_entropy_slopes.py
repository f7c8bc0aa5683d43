"""Gradient of a cross entropy with respect to the logits of a part of the vocabulary, from the exponentials that were kept."""

from typing import Literal

from linear_parts import LOG2E, TILES, E, L, T

import tilec as tl


@tl.kernel
def linear_cross_entropy_slopes(
    kept: tl.In[E, TILES, T, Literal["WIDTH"]],
    maxima: tl.In[tl.f32, TILES, Literal["(T + 7) // 8 * 8"]],
    labels: tl.In[L, T],
    lse: tl.In[tl.f32, T],
    dloss: tl.In[tl.f32, T],
    dlogits: tl.Out[E, T, Literal["TILES * WIDTH"]],
    transposed: tl.Out[E, Literal["TILES * WIDTH"], Literal["(T + 7) // 8 * 8"]],
    first: tl.i32,
    count: tl.i32,
    ignore_index: tl.i32,
    *,
    E: tl.Const,
    L: tl.Const,
    WIDTH: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
):
    """`dlogits` and `transposed` of `linear_cross_entropy_backward` for `count` classes from `first` on, whose tiles of WIDTH
    classes `kept` and `maxima` are of `linear_exponentials`; both have 0 past the last class and token.

    A slope is off by a rounding of `kept` and one of its own, both relative: where the share of a label is above a half, it is
    the largest of its tile, and kept as 1."""
    assert WIDTH % BN == 0
    tl.requires(T <= 1073741824, TILES <= 4194304, first >= 0, first <= 1073741824, count >= 0)
    rows = tl.cdiv(T, BM)
    tl.grid(rows * TILES * (WIDTH // BN))
    tl.requires(rows * TILES * (WIDTH // BN) <= 2147483647)
    m, n = tl.bid(0) % rows, tl.bid(0) // rows
    tile = n // (WIDTH // BN)
    own = tl.load(kept, (tile, m, n % (WIDTH // BN)), shape=(1, BM, BN), pad=0).reshape((BM, BN)).astype(tl.f32)
    top = tl.load(maxima, (tile, m), shape=(1, BM), pad=0).reshape((BM,))
    scale = tl.exp2(top - tl.load(lse, m, shape=BM, pad=tl.inf) * LOG2E, fast=True)
    label = tl.load(labels, m, shape=BM, pad=0)
    factor = tl.where(label == ignore_index, 0.0, tl.load(dloss, m, shape=BM, pad=0))
    index = label.astype(tl.i64) - tl.i64(first)
    index = tl.where((index >= 0) & (index < tl.i64(count)), index, -1).astype(tl.i32)
    chosen = tl.where(index[:, None] == (n * BN + tl.arange(BN))[None, :], 1.0, 0.0)
    grad = ((own * scale[:, None] - chosen) * factor[:, None]).astype(E)
    tl.store(dlogits, (m, n), grad, mask=True)
    tl.store(transposed, (n, m), grad.T, mask=True)
