"""Softmax of each row."""

import tilec as tl

LOG2E = 1.4426950408889634


class E(tl.Element):
    """bf16, f16 or f32"""


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


@tl.kernel
def softmax(x: tl.In[E, T, N], out: tl.Out[E, T, N], *, E: tl.Const, ROWS: tl.Const, BLOCK: tl.Const, MULTIPLE: tl.Const):
    """`out[t] = exp(x[t]) / sum(exp(x[t]))`, in f32, rounded once; a block computes ROWS rows of at most BLOCK elements."""
    tl.requires(N <= BLOCK)
    tl.requires(N % MULTIPLE == 0)
    tl.grid(tl.cdiv(T, ROWS))
    rows = tl.bid(0)
    v = tl.load(x, (rows, 0), shape=(ROWS, BLOCK), pad=-tl.inf).astype(tl.f32)
    weights = tl.exp2((v - tl.max(v, axis=1)[:, None]) * LOG2E, fast=True)
    scale = 1.0 / tl.sum(weights, axis=1)
    tl.store(out, (rows, 0), (weights * scale[:, None]).astype(E), mask=True)
