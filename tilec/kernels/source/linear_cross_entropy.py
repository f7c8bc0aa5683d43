"""Cross entropy of a linear layer and the label of each token, from what `linear_sums` found."""

from typing import Literal

from linear_parts import LN2, TILES, E, H, L, T, V

import tilec as tl


@tl.kernel
def linear_cross_entropy(
    x: tl.In[E, T, H],
    weight: tl.In[E, V, H],
    labels: tl.In[L, T],
    maxima: tl.In[tl.f32, TILES, Literal["(T + 7) // 8 * 8"]],
    sums: tl.In[tl.f32, TILES, Literal["(T + 7) // 8 * 8"]],
    loss: tl.Out[tl.f32, T],
    lse: tl.Out[tl.f32, T],
    ignore_index: tl.i32,
    *,
    E: tl.Const,
    L: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
):
    """`lse[t] = log(sum(exp(x[t] @ weight.T)))` and `loss[t] = lse[t] - x[t] @ weight[labels[t]]`, in f32.

    A loss whose label is `ignore_index` is 0. A label outside of the vocabulary has the logit -inf, and its loss is inf.
    A block has ROWS tokens, and reads BLOCK tiles of their sums at a time, or BLOCK elements of a row."""
    tl.requires(H % 8 == 0, T <= 1073741824)
    tl.grid(tl.cdiv(T, ROWS))
    i = tl.bid(0)
    top = tl.full((BLOCK, ROWS), -3.0e38, tl.f32)
    for j in range(tl.cdiv(TILES, BLOCK)):
        top = tl.maximum(top, tl.load(maxima, (j, i), shape=(BLOCK, ROWS), pad=-tl.inf))
    high = tl.max(top, axis=0, keepdims=True)
    total = tl.zeros((BLOCK, ROWS), tl.f32)
    for j in range(tl.cdiv(TILES, BLOCK)):
        tops = tl.load(maxima, (j, i), shape=(BLOCK, ROWS), pad=-tl.inf)
        total = total + tl.load(sums, (j, i), shape=(BLOCK, ROWS), pad=0) * tl.exp2(tops - high, fast=True)
    whole = (tl.log2(tl.sum(total, axis=0), fast=True) + tl.reshape(high, (ROWS,))) * LN2
    chosen = tl.zeros((ROWS,), tl.f32)
    for r in range(ROWS):
        t = i * ROWS + r
        label = tl.load(labels, t, pad=0)
        product = tl.zeros((1, BLOCK), tl.f32)
        for h in range(tl.cdiv(H, BLOCK)):
            a = tl.load(x, (t, h), shape=(1, BLOCK), pad=0).astype(tl.f32)
            product = product + a * tl.load(weight, (label, h), shape=(1, BLOCK), pad=0).astype(tl.f32)
        chosen = tl.where(tl.arange(ROWS) == r, tl.sum(product), chosen)
    own = tl.load(labels, i, shape=ROWS, pad=0)
    logit = tl.where((own >= 0) & (own < V), chosen, -tl.inf)
    tl.store(lse, i, whole, mask=True)
    tl.store(loss, i, tl.where(own == ignore_index, 0.0, whole - logit), mask=True)
