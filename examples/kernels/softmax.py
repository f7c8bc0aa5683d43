"""Softmax of each row; a row is one tile."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


@tl.kernel
def softmax(x: tl.In[E, T, N], out: tl.Out[E, T, N], *, E: tl.Const, N: tl.Const):
    """`out[t] = exp(x[t] - max(x[t])) / sum(exp(x[t] - max(x[t])))`, in f32, rounded once."""
    tl.grid(T)
    row = tl.bid(0)
    v = tl.load(x, (row, 0), shape=(1, N)).astype(tl.f32)
    weights = tl.exp(v - tl.max(v), fast=True)
    tl.store(out, (row, 0), (weights / tl.sum(weights)).astype(E))
