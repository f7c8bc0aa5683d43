"""RMS norm of `x + residual`, times a weight and SiLU of a gate."""

import tilec as tl


class E(tl.Element):
    """bf16 or f16"""


class T(tl.Dim):
    """rows"""


class N(tl.Dim):
    """elements of a row"""


@tl.kernel
def gated_norm(
    x: tl.In[E, T, N],
    residual: tl.In[E, T, N],
    gate: tl.In[E, T, N],
    weight: tl.In[E, N],
    out: tl.Out[E, T, N],
    total: tl.Out[E, T, N],
    eps: tl.f32,
    *,
    E: tl.Const,
    N: tl.Const,
):
    tl.grid(T)
    row = tl.bid(0)
    s = tl.load(x, (row, 0), shape=(1, N)).astype(tl.f32) + tl.load(residual, (row, 0), shape=(1, N)).astype(tl.f32)
    tl.store(total, (row, 0), s.astype(E))
    g = tl.load(gate, (row, 0), shape=(1, N)).astype(tl.f32)
    w = tl.load(weight, 0, shape=N).astype(tl.f32)
    scale = tl.rsqrt(tl.sum(s * s, axis=1, keepdims=True) / N + eps)
    tl.store(out, (row, 0), (s * scale * w * g * tl.sigmoid(g)).astype(E))
