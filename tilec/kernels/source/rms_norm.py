"""Root-mean-square norm of each row, with weight (Zhang and Sennrich, Root Mean Square Layer Normalization, 2019)."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


@tl.kernel
def rms_norm(
    x: tl.In[E, T, N],
    weight: tl.In[E, N],
    out: tl.Out[E, T, N],
    rstd: tl.Out[tl.f32, T],
    eps: tl.f32,
    *,
    E: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
    MULTIPLE: tl.Const,
):
    """`out[t] = x[t] * rstd[t] * weight` with `rstd[t] = 1 / sqrt(mean(x[t]^2) + eps)`, in f32, rounded once.

    A block computes ROWS rows of at most BLOCK elements."""
    tl.requires(N <= BLOCK)
    tl.requires(N % MULTIPLE == 0)
    tl.grid(tl.cdiv(T, ROWS))
    rows = tl.bid(0)
    v = tl.load(x, (rows, 0), shape=(ROWS, BLOCK), pad=0).astype(tl.f32)
    w = tl.load(weight, 0, shape=BLOCK, pad=0)
    scale = tl.rsqrt(tl.sum(v * v, axis=1) * (1.0 / tl.f32(N)) + eps, fast=True)
    tl.store(out, (rows, 0), (v * scale[:, None] * w.astype(tl.f32)[None, :]).astype(E), mask=True)
    tl.store(rstd, rows, scale, mask=True)
