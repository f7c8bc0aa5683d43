"""Gradient of the cross entropy of each token's logits and its label."""

import tilec as tl

LOG2E = 1.4426950408889634


class E(tl.Element):
    """bf16, f16 or f32"""


class L(tl.Element):
    """i32 or i64"""


class T(tl.Dim):
    """number of tokens"""


class V(tl.Dim):
    """size of the vocabulary"""


@tl.kernel
def cross_entropy_backward(
    logits: tl.In[E, T, V],
    labels: tl.In[L, T],
    lse: tl.In[tl.f32, T],
    dloss: tl.In[tl.f32, T],
    dlogits: tl.Out[E, T, V],
    ignore_index: tl.i32,
    *,
    E: tl.Const,
    L: tl.Const,
    BLOCK: tl.Const,
    MULTIPLE: tl.Const,
):
    """`dlogits[t, v] = (exp(logits[t, v] - lse[t]) - (v == labels[t])) * dloss[t]`, and 0 where the label is `ignore_index`.

    Computed in f32, rounded once. A block computes BLOCK elements of a row; blocks of a row follow each other."""
    tl.requires(V % MULTIPLE == 0)
    tiles = tl.cdiv(V, BLOCK)
    tl.grid(T * tiles)
    t, j = tl.bid(0) // tiles, tl.bid(0) % tiles
    label = tl.load(labels, t)
    factor = tl.where(label == ignore_index, 0.0, tl.load(dloss, t))
    v = tl.load(logits, (t, j), shape=(1, BLOCK), pad=0).astype(tl.f32)
    weights = tl.exp2((v - tl.load(lse, t)) * LOG2E, fast=True)
    column = tl.i64(label) - tl.i64(j * BLOCK)
    column = tl.where((column >= 0) & (column < BLOCK), column, -1).astype(tl.i32)
    chosen = tl.where(tl.arange(BLOCK)[None, :] == column, 1.0, 0.0)
    tl.store(dlogits, (t, j), ((weights - chosen) * factor).astype(E), mask=True)
