"""Residual addition fused with root-mean-square normalisation (Zhang and Sennrich, 2019)."""

import tilec
from tilec import Const, Dim, Element, In, InOut, Out, astype, bid, f32, grid, load, rsqrt, store, sum


class E(Element):
    """bf16 or f16"""


class T(Dim):
    """number of rows (tokens)"""


class H(Dim):
    """hidden size"""


@tilec.kernel
def add_rms_norm(
    x: In[E, T, H],
    residual: InOut[E, T, H],
    weight: In[E, H],
    out: Out[E, T, H],
    eps: f32,
    *,
    E: Const,
    H: Const,
):
    """`residual += x`, then `out = rms_norm(residual) * weight`; the norm sees the sum as it was stored."""
    grid(T)
    row = bid(0)
    total = load(x, (row, 0), shape=(1, H)) + load(residual, (row, 0), shape=(1, H))
    w = load(weight, 0, shape=H).astype(f32)
    store(residual, (row, 0), total)
    v = total.astype(f32)
    scale = rsqrt(sum(v * v, axis=1) * (1.0 / H) + eps)
    store(out, (row, 0), astype(v * scale[:, None] * w[None, :], E))
