"""The weighted sum of each token's experts, fused with the addition to the residual and root-mean-square normalisation (Zhang
and Sennrich, 2019)."""

import tilec as tl

from .dims import E, H, T
from .experts_dims import C


class R(tl.Dim):
    """rows in the order of experts"""


@tl.kernel
def experts_combine(
    y: tl.In[E, R, H],
    places: tl.In[tl.i32, T, C],
    weights: tl.In[tl.f32, T, C],
    residual: tl.InOut[E, T, H],
    weight: tl.In[E, H],
    out: tl.Out[E, T, H],
    eps: tl.f32,
    *,
    E: tl.Const,
    H: tl.Const,
    C: tl.Const,
):
    """`residual[t] += sum of weights[t, c] * y[places[t, c]]`, in f32 and in the order of c, rounded once; then
    `out = rms_norm(residual) * weight`. The norm sees the sum as it was stored."""
    tl.values(places, 0, R)
    tl.grid(T)
    t = tl.bid(0)
    total = tl.zeros((1, H), tl.f32)
    for c in tl.static_range(C):
        total = total + tl.load(weights, (t, c)) * tl.load(y, (tl.load(places, (t, c)), 0), shape=(1, H)).astype(tl.f32)
    stored = (tl.load(residual, (t, 0), shape=(1, H)).astype(tl.f32) + total).astype(E)
    w = tl.load(weight, 0, shape=H).astype(tl.f32)
    tl.store(residual, (t, 0), stored)
    v = stored.astype(tl.f32)
    scale = tl.rsqrt(tl.sum(v * v, axis=1) * (1.0 / H) + eps, fast=True)
    tl.store(out, (t, 0), tl.astype(v * scale[:, None] * w[None, :], E))
