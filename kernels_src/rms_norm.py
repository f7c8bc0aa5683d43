"""Root-mean-square normalisation of each row (Zhang and Sennrich, Root Mean Square Layer Normalization, 2019)."""

import tilec as tl

from .dims import E, H, T


@tl.kernel
def rms_norm(x: tl.In[E, T, H], weight: tl.In[E, H], out: tl.Out[E, T, H], eps: tl.f32, *, E: tl.Const, H: tl.Const):
    """`out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight`; one row per block, in f32, rounded once."""
    tl.grid(T)
    row = tl.bid(0)
    v = tl.load(x, (row, 0), shape=(1, H)).astype(tl.f32)
    w = tl.load(weight, 0, shape=H).astype(tl.f32)
    scale = tl.rsqrt(tl.sum(v * v, axis=1) * (1.0 / H) + eps, fast=True)
    tl.store(out, (row, 0), tl.astype(v * scale[:, None] * w[None, :], E))
