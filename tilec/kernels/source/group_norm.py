"""Group norm: each group of channels is normalised by its own mean and variance (Wu and He, Group Normalization, 2018)."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class B(tl.Dim):
    """samples"""


class G(tl.Dim):
    """groups of a sample"""


class C(tl.Dim):
    """channels of a group"""


class L(tl.Dim):
    """elements of a channel"""


@tl.function
def folded(v: tl.Tile, CHANNELS: int, BLOCK: int) -> tl.Tile:
    """Sums of eight neighbours, which one thread holds."""
    return tl.sum(v.reshape((CHANNELS, BLOCK // 8, 8)), axis=2)


@tl.kernel
def group_norm(
    x: tl.In[E, B, G, C, L],
    weight: tl.In[E, G, C],
    bias: tl.In[E, G, C],
    out: tl.Out[E, B, G, C, L],
    mean: tl.Out[tl.f32, B, G],
    rstd: tl.Out[tl.f32, B, G],
    eps: tl.f32,
    *,
    E: tl.Const,
    CHANNELS: tl.Const,
    BLOCK: tl.Const,
    MULTIPLE: tl.Const,
):
    """`out[b, g] = (x[b, g] - mean[b, g]) * rstd[b, g] * weight[g] + bias[g]` with `rstd = 1 / sqrt(var(x[b, g]) + eps)`, in
    f32, rounded once.

    A block computes a group in tiles of CHANNELS by BLOCK elements, which it reads twice. The first pass sums differences from
    the mean of the first tile and their squares, so that a large mean does not take digits from the variance."""
    tl.requires(L % MULTIPLE == 0)
    tl.grid(G, B)
    g, b = tl.bid(0), tl.bid(1)
    rows = tl.arange(CHANNELS)[:, None]
    columns = tl.arange(BLOCK)[None, :]
    share = 1.0 / (tl.f32(C) * tl.f32(L))
    first = tl.load(x, (b, g, 0, 0), shape=(1, 1, CHANNELS, BLOCK), pad=0).reshape((CHANNELS, BLOCK)).astype(tl.f32)
    near = tl.sum(first) / (tl.f32(tl.minimum(C, CHANNELS)) * tl.f32(tl.minimum(L, BLOCK)))
    sums = folded(tl.zeros((CHANNELS, BLOCK), tl.f32), CHANNELS, BLOCK)
    squares = folded(tl.zeros((CHANNELS, BLOCK), tl.f32), CHANNELS, BLOCK)
    for c in range(tl.cdiv(C, CHANNELS)):
        for j in range(tl.cdiv(L, BLOCK)):
            v = tl.load(x, (b, g, c, j), shape=(1, 1, CHANNELS, BLOCK), pad=0).reshape((CHANNELS, BLOCK)).astype(tl.f32)
            inside = (rows < C - c * CHANNELS) & (columns < L - j * BLOCK)
            v = tl.where(inside, v - near, 0)
            sums = sums + folded(v, CHANNELS, BLOCK)
            squares = squares + folded(v * v, CHANNELS, BLOCK)
    shift = tl.sum(sums) * share
    middle = near + shift
    scale = tl.rsqrt(tl.maximum(tl.sum(squares) * share - shift * shift, 0.0) + eps, fast=True)
    tl.store(mean, (b, g), middle)
    tl.store(rstd, (b, g), scale)
    for c in range(tl.cdiv(C, CHANNELS)):
        w = tl.load(weight, (g, c), shape=(1, CHANNELS), pad=0).reshape((CHANNELS, 1)).astype(tl.f32) * scale
        a = tl.load(bias, (g, c), shape=(1, CHANNELS), pad=0).reshape((CHANNELS, 1)).astype(tl.f32)
        for j in range(tl.cdiv(L, BLOCK)):
            v = tl.load(x, (b, g, c, j), shape=(1, 1, CHANNELS, BLOCK), pad=0).reshape((CHANNELS, BLOCK)).astype(tl.f32)
            y = ((v - middle) * w + a).astype(E)
            tl.store(out, (b, g, c, j), y.reshape((1, 1, CHANNELS, BLOCK)), mask=True)
