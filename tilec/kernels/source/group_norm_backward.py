"""Gradient of the group norm, and of its weight and bias for each sample."""

from typing import Literal

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
def group_norm_backward(
    dout: tl.In[E, B, G, C, L],
    x: tl.In[E, B, G, C, L],
    weight: tl.In[E, G, C],
    mean: tl.In[tl.f32, B, G],
    rstd: tl.In[tl.f32, B, G],
    dx: tl.Out[E, B, G, C, L],
    partial: tl.Out[tl.f32, B, Literal[2], G, C],
    *,
    E: tl.Const,
    CHANNELS: tl.Const,
    BLOCK: tl.Const,
    MULTIPLE: tl.Const,
):
    """With `y = (x - mean) * rstd` and `dy = dout * weight`, `dx[b, g] = rstd[b, g] * (dy - mean(dy) - y * mean(dy * y))`.

    `partial[b, 0]` is the sum of `dout * y` over the elements of each channel, and `partial[b, 1]` that of `dout`. In f32; `dx`
    is rounded once. A block computes a group in tiles of CHANNELS by BLOCK elements, which it reads twice."""
    tl.requires(L % MULTIPLE == 0)
    tl.grid(G, B)
    g, b = tl.bid(0), tl.bid(1)
    share = 1.0 / (tl.f32(C) * tl.f32(L))
    middle, scale = tl.load(mean, (b, g)), tl.load(rstd, (b, g))
    first = tl.zeros((CHANNELS,), tl.f32)
    second = tl.zeros((CHANNELS,), tl.f32)
    for c in range(tl.cdiv(C, CHANNELS)):
        of_weight = folded(tl.zeros((CHANNELS, BLOCK), tl.f32), CHANNELS, BLOCK)
        of_bias = folded(tl.zeros((CHANNELS, BLOCK), tl.f32), CHANNELS, BLOCK)
        for j in range(tl.cdiv(L, BLOCK)):
            v = tl.load(x, (b, g, c, j), shape=(1, 1, CHANNELS, BLOCK), pad=0).reshape((CHANNELS, BLOCK)).astype(tl.f32)
            d = tl.load(dout, (b, g, c, j), shape=(1, 1, CHANNELS, BLOCK), pad=0).reshape((CHANNELS, BLOCK)).astype(tl.f32)
            of_weight = of_weight + folded(d * ((v - middle) * scale), CHANNELS, BLOCK)
            of_bias = of_bias + folded(d, CHANNELS, BLOCK)
        w = tl.load(weight, (g, c), shape=(1, CHANNELS), pad=0).reshape((CHANNELS,)).astype(tl.f32)
        for_weight, for_bias = tl.sum(of_weight, axis=1), tl.sum(of_bias, axis=1)
        first = first + w * for_bias
        second = second + w * for_weight
        tl.store(partial, (b, 0, g, c), for_weight[None, None, None, :], mask=True)
        tl.store(partial, (b, 1, g, c), for_bias[None, None, None, :], mask=True)
    low = tl.sum(first) * share
    slope = tl.sum(second) * share
    for c in range(tl.cdiv(C, CHANNELS)):
        w = tl.load(weight, (g, c), shape=(1, CHANNELS), pad=0).reshape((CHANNELS, 1)).astype(tl.f32)
        for j in range(tl.cdiv(L, BLOCK)):
            v = tl.load(x, (b, g, c, j), shape=(1, 1, CHANNELS, BLOCK), pad=0).reshape((CHANNELS, BLOCK)).astype(tl.f32)
            d = tl.load(dout, (b, g, c, j), shape=(1, 1, CHANNELS, BLOCK), pad=0).reshape((CHANNELS, BLOCK)).astype(tl.f32)
            y = (((d * w - low) - (v - middle) * scale * slope) * scale).astype(E)
            tl.store(dx, (b, g, c, j), y.reshape((1, 1, CHANNELS, BLOCK)), mask=True)
