"""Residual addition fused with root-mean-square normalisation (Zhang and Sennrich, 2019)."""

import tilec as tl

from .dims import E, H, T


@tl.kernel
def add_rms_norm(
    x: tl.In[E, T, H],
    residual: tl.InOut[E, T, H],
    weight: tl.In[E, H],
    out: tl.Out[E, T, H],
    eps: tl.f32,
    *,
    E: tl.Const,
    H: tl.Const,
):
    """`residual += x`, then `out = rms_norm(residual) * weight`; the norm sees the sum as it was stored."""
    tl.grid(T)
    row = tl.bid(0)
    total = tl.load(x, (row, 0), shape=(1, H)) + tl.load(residual, (row, 0), shape=(1, H))
    w = tl.load(weight, 0, shape=H).astype(tl.f32)
    tl.store(residual, (row, 0), total)
    v = total.astype(tl.f32)
    scale = tl.rsqrt(tl.sum(v * v, axis=1) * (1.0 / H) + eps, fast=True)
    tl.store(out, (row, 0), tl.astype(v * scale[:, None] * w[None, :], E))
