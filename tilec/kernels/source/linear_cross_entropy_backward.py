"""Gradient of a cross entropy with respect to the logits of a part of the vocabulary, which are computed again."""

from typing import Literal

from linear_parts import LOG2E, E, H, L, T, V

import tilec as tl


@tl.kernel
def linear_cross_entropy_backward(
    x: tl.In[E, T, H],
    weight: tl.In[E, V, H],
    labels: tl.In[L, T],
    lse: tl.In[tl.f32, T],
    dloss: tl.In[tl.f32, T],
    dlogits: tl.Out[E, T, Literal["(V + 7) // 8 * 8"]],
    transposed: tl.Out[E, V, Literal["(T + 7) // 8 * 8"]],
    first: tl.i32,
    ignore_index: tl.i32,
    *,
    E: tl.Const,
    L: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    """`dlogits[t, v] = (exp(logits[t, v] - lse[t]) - (first + v == labels[t])) * dloss[t]`, and 0 where the label is
    `ignore_index`; `transposed` is `dlogits.T`. Both have 0 past the end of a row, which begins at whole vectors.

    `weight` has the V classes from `first` on. The products that follow read both ways round."""
    tl.requires(H % 8 == 0, T <= 1073741824, V <= 1073741824, first >= 0, first <= 1073741824)
    rows, columns = tl.cdiv(T, BM), tl.cdiv(V, BN)
    tl.grid(rows * columns)
    tl.requires(rows * columns <= 2147483647)
    m, n = tl.bid(0) % rows, tl.bid(0) // rows
    acc = tl.zeros((BM, BN), tl.f32)
    for k in range(tl.cdiv(H, BK)):
        a = tl.load(x, (m, k), shape=(BM, BK), pad=0)
        b = tl.load(weight, (n, k), shape=(BN, BK), pad=0)
        acc = tl.mma(a, b.T, acc)
    label = tl.load(labels, m, shape=BM, pad=0)
    factor = tl.where(label == ignore_index, 0.0, tl.load(dloss, m, shape=BM, pad=0))[:, None]
    own = tl.load(lse, m, shape=BM, pad=tl.inf)[:, None]
    column = n * BN + tl.arange(BN)
    index = label.astype(tl.i64) - tl.i64(first)
    index = tl.where((index >= 0) & (index < V), index, -1).astype(tl.i32)
    chosen = tl.where(index[:, None] == column[None, :], 1.0, 0.0)
    grad = (tl.exp2((acc - own) * LOG2E, fast=True) - chosen) * factor
    grad = tl.where(column[None, :] < V, grad, 0.0).astype(E)
    tl.store(dlogits, (m, n), grad, mask=True)
    tl.store(transposed, (n, m), grad.T, mask=True)
