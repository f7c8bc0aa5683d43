"""`add_rms_norm` of a product whose depth several blocks shared: the parts that `matmul_split` leaves are added here."""

import tilec as tl

from .dims import E, H, T


class S(tl.Dim):
    """parts"""


@tl.kernel
def add_rms_norm_splits(
    parts: tl.In[tl.f32, S, T, H],
    residual: tl.InOut[E, T, H],
    weight: tl.In[E, H],
    out: tl.Out[E, T, H],
    eps: tl.f32,
    *,
    E: tl.Const,
    H: tl.Const,
    S: tl.Const,
):
    """`residual += sum_s(parts[s])` in f32, in the order of the parts, rounded once; then `out = rms_norm(residual) * weight`,
    of the sum as it was stored."""
    tl.resident(weight)
    tl.grid(T)
    row = tl.bid(0)
    x = tl.load(parts, (0, row, 0), shape=(1, 1, H))
    for s in range(1, S):
        x += tl.load(parts, (s, row, 0), shape=(1, 1, H))
    total = tl.astype(tl.reshape(x, (1, H)) + tl.load(residual, (row, 0), shape=(1, H)).astype(tl.f32), E)
    w = tl.load(weight, 0, shape=H).astype(tl.f32)
    tl.store(residual, (row, 0), total)
    v = total.astype(tl.f32)
    scale = tl.rsqrt(tl.sum(v * v, axis=1) * (1.0 / H) + eps, fast=True)
    tl.store(out, (row, 0), tl.astype(v * scale[:, None] * w[None, :], E))
