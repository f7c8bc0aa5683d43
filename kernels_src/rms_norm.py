"""Root-mean-square normalisation of each row (Zhang and Sennrich, Root Mean Square Layer Normalization, 2019)."""

import tilec
from tilec import Const, Dim, Element, In, Out, astype, bid, f32, grid, load, rsqrt, store, sum


class E(Element):
    """bf16 or f16"""


class T(Dim):
    """number of rows (tokens)"""


class H(Dim):
    """hidden size"""


@tilec.kernel
def rms_norm(x: In[E, T, H], weight: In[E, H], out: Out[E, T, H], eps: f32, *, E: Const, H: Const):
    """`out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight`; one row per block, in f32, rounded once."""
    grid(T)
    row = bid(0)
    v = load(x, (row, 0), shape=(1, H)).astype(f32)
    w = load(weight, 0, shape=H).astype(f32)
    scale = rsqrt(sum(v * v, axis=1) * (1.0 / H) + eps)
    store(out, (row, 0), astype(v * scale[:, None] * w[None, :], E))
