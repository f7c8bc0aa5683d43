"""Layer norm of each row, with weight and bias."""

import tilec
from tilec import Const, Dim, Element, In, Out, bid, f32, grid, load, rsqrt, store, sum


class E(Element):
    """bf16, f16 or f32"""


class T(Dim):
    """number of rows"""


class H(Dim):
    """elements of a row"""


@tilec.kernel
def layer_norm(
    x: In[E, T, H],
    weight: In[E, H],
    bias: In[E, H],
    out: Out[E, T, H],
    eps: f32,
    *,
    E: Const,
    H: Const,
):
    """`out[t] = (x[t] - mean(x[t])) / sqrt(var(x[t]) + eps) * weight + bias`, in f32, rounded once."""
    grid(T)
    row = bid(0)
    v = load(x, (row, 0), shape=(1, H)).astype(f32)
    centred = v - sum(v) / H
    scale = rsqrt(sum(centred * centred) / H + eps)
    w = load(weight, 0, shape=H).astype(f32)
    b = load(bias, 0, shape=H).astype(f32)
    store(out, (row, 0), (centred * scale * w[None, :] + b[None, :]).astype(E))
