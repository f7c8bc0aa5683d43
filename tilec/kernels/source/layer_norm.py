"""Layer norm of each row, with weight and bias."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


@tl.kernel
def layer_norm(
    x: tl.In[E, T, N],
    weight: tl.In[E, N],
    bias: tl.In[E, N],
    out: tl.Out[E, T, N],
    mean: tl.Out[tl.f32, T],
    rstd: tl.Out[tl.f32, T],
    eps: tl.f32,
    *,
    E: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
    MULTIPLE: tl.Const,
):
    """`out[t] = (x[t] - mean[t]) * rstd[t] * weight + bias` with `rstd[t] = 1 / sqrt(var(x[t]) + eps)`, in f32, rounded once.

    A block computes ROWS rows of at most BLOCK elements."""
    tl.requires(N <= BLOCK)
    tl.requires(N % MULTIPLE == 0)
    tl.grid(tl.cdiv(T, ROWS))
    rows = tl.bid(0)
    inside = (tl.arange(BLOCK) < N)[None, :]
    share = 1.0 / tl.f32(N)
    v = tl.load(x, (rows, 0), shape=(ROWS, BLOCK), pad=0).astype(tl.f32)
    w = tl.load(weight, 0, shape=BLOCK, pad=0)
    b = tl.load(bias, 0, shape=BLOCK, pad=0)
    middle = tl.sum(v, axis=1) * share
    centred = tl.where(inside, v - middle[:, None], 0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=1) * share + eps, fast=True)
    y = centred * scale[:, None] * w.astype(tl.f32)[None, :] + b.astype(tl.f32)[None, :]
    tl.store(out, (rows, 0), y.astype(E), mask=True)
    tl.store(mean, rows, middle, mask=True)
    tl.store(rstd, rows, scale, mask=True)
