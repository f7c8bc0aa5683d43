"""Layer norm of each row, with weight and bias."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class T(tl.Dim):
    """number of rows"""


class H(tl.Dim):
    """elements of a row"""


@tl.kernel
def layer_norm(
    x: tl.In[E, T, H],
    weight: tl.In[E, H],
    bias: tl.In[E, H],
    out: tl.Out[E, T, H],
    eps: tl.f32,
    *,
    E: tl.Const,
    H: tl.Const,
):
    """`out[t] = (x[t] - mean(x[t])) / sqrt(var(x[t]) + eps) * weight + bias`, in f32, rounded once."""
    tl.grid(T)
    row = tl.bid(0)
    v = tl.load(x, (row, 0), shape=(1, H)).astype(tl.f32)
    centred = v - tl.sum(v) / H
    scale = tl.rsqrt(tl.sum(centred * centred) / H + eps, fast=True)
    w = tl.load(weight, 0, shape=H).astype(tl.f32)
    b = tl.load(bias, 0, shape=H).astype(tl.f32)
    tl.store(out, (row, 0), (centred * scale * w[None, :] + b[None, :]).astype(E))
