"""`add_rms_norm` of a product whose depth several blocks shared: the parts that `matmul_split` leaves are added here."""

import tilec
from tilec import Const, Dim, Element, In, InOut, Out, astype, bid, f32, grid, load, reshape, rsqrt, store, sum


class E(Element):
    """bf16 or f16"""


class T(Dim):
    """number of rows (tokens)"""


class H(Dim):
    """hidden size"""


class S(Dim):
    """parts"""


@tilec.kernel
def add_rms_norm_splits(
    parts: In[f32, S, T, H],
    residual: InOut[E, T, H],
    weight: In[E, H],
    out: Out[E, T, H],
    eps: f32,
    *,
    E: Const,
    H: Const,
    S: Const,
):
    """`residual += sum_s(parts[s])` in f32, in the order of the parts, rounded once; then `out = rms_norm(residual) * weight`,
    of the sum as it was stored."""
    grid(T)
    row = bid(0)
    x = load(parts, (0, row, 0), shape=(1, 1, H))
    for s in range(1, S):
        x += load(parts, (s, row, 0), shape=(1, 1, H))
    total = astype(reshape(x, (1, H)) + load(residual, (row, 0), shape=(1, H)).astype(f32), E)
    w = load(weight, 0, shape=H).astype(f32)
    store(residual, (row, 0), total)
    v = total.astype(f32)
    scale = rsqrt(sum(v * v, axis=1) * (1.0 / H) + eps)
    store(out, (row, 0), astype(v * scale[:, None] * w[None, :], E))
