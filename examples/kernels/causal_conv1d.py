"""Depthwise causal convolution along the tokens, then SiLU."""

import tilec as tl

LOG2E = 1.4426950408889634


class E(tl.Element):
    """bf16, f16 or f32"""


class B(tl.Dim):
    """sequences"""


class T(tl.Dim):
    """tokens of a sequence"""


class D(tl.Dim):
    """channels"""


class W(tl.Dim):
    """taps of the filter, 4"""


@tl.function
def silu(x: tl.Tile) -> tl.Tile:
    """`x / (1 + exp(-x))`: two products with the reciprocal of the root take fewer instructions than a division."""
    root = tl.rsqrt(1 + tl.exp2(x * -LOG2E, fast=True), fast=True)
    return x * root * root


@tl.function
def token(x: tl.Tensor, b: int, t: int, d: int, BD: int) -> tl.Tile:
    """The channels of a token, or of the first or the last one where there is no such token."""
    return tl.load(x, offset=(b, tl.minimum(tl.maximum(t, 0), T - 1), d), shape=(1, 1, BD), pad=0)


@tl.function
def before(x: tl.Tensor, b: int, t: int, d: int, BD: int) -> tl.Tile:
    """The same as f32, and 0 before the first token."""
    return tl.where(t >= 0, token(x, b, t, d, BD).astype(tl.f32), 0)


@tl.function
def tap(weight: tl.Tensor, k: int, d: int, BD: int) -> tl.Tile:
    return tl.load(weight, offset=(k, d), shape=(1, BD), pad=0).astype(tl.f32)[None, :, :]


@tl.kernel
def causal_conv1d(
    x: tl.In[E, B, T, D],
    weight: tl.In[E, W, D],
    bias: tl.In[E, D],
    out: tl.Out[E, B, T, D],
    *,
    E: tl.Const,
    W: tl.Const,
    BT: tl.Const,
    BD: tl.Const,
):
    """`out[b, t, d] = silu(bias[d] + sum(weight[k, d] * x[b, t + k - (W - 1), d] for k in range(W)))`

    A block walks along BT tokens: each is read and converted once, four iterations before it is needed, and stays for the
    next three."""
    assert W == 4 and BT % 4 == 0
    tl.requires(D % 8 == 0)
    tl.grid(tl.cdiv(D, BD), tl.cdiv(T, BT), B)
    d, t, b = tl.bid(0) * BD, tl.bid(1) * BT, tl.bid(2)
    w0, w1, w2, w3 = tap(weight, 0, d, BD), tap(weight, 1, d, BD), tap(weight, 2, d, BD), tap(weight, 3, d, BD)
    start = tl.load(bias, offset=d, shape=BD, pad=0).astype(tl.f32)[None, None, :]
    x0, x1, x2 = before(x, b, t - 3, d, BD), before(x, b, t - 2, d, BD), before(x, b, t - 1, d, BD)
    next0, next1 = token(x, b, t, d, BD), token(x, b, t + 1, d, BD)
    next2, next3 = token(x, b, t + 2, d, BD), token(x, b, t + 3, d, BD)
    for i in range(t, t + BT, 4):
        x3, next0 = next0.astype(tl.f32), token(x, b, i + 4, d, BD)
        y = silu(start + x0 * w0 + x1 * w1 + x2 * w2 + x3 * w3)
        tl.store(out, y.astype(E), offset=(b, i, d), mask=True)
        x4, next1 = next1.astype(tl.f32), token(x, b, i + 5, d, BD)
        y = silu(start + x1 * w0 + x2 * w1 + x3 * w2 + x4 * w3)
        tl.store(out, y.astype(E), offset=(b, i + 1, d), mask=True)
        x5, next2 = next2.astype(tl.f32), token(x, b, i + 6, d, BD)
        y = silu(start + x2 * w0 + x3 * w1 + x4 * w2 + x5 * w3)
        tl.store(out, y.astype(E), offset=(b, i + 2, d), mask=True)
        x6, next3 = next3.astype(tl.f32), token(x, b, i + 7, d, BD)
        y = silu(start + x3 * w0 + x4 * w1 + x5 * w2 + x6 * w3)
        tl.store(out, y.astype(E), offset=(b, i + 3, d), mask=True)
        x0, x1, x2 = x4, x5, x6
