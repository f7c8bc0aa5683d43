"""Gradient of the SiLU of a causal convolution: of its sums."""

from causal_parts import B, D, E, T, W, convolved, tokens

import tilec as tl


@tl.kernel
def causal_conv1d_slope(
    dout: tl.In[E, B, T, D],
    x: tl.In[E, B, T, D],
    weight: tl.In[E, D, W],
    bias: tl.In[E, D],
    dy: tl.Out[tl.f32, B, T, D],
    silu: tl.i32,
    *,
    E: tl.Const,
    W: tl.Const,
    BT: tl.Const,
    BD: tl.Const,
    MULTIPLE: tl.Const,
):
    """`dy = dout`, or `dout * s * (1 + y * (1 - s))` with `s = sigmoid(y)` if `silu` is not 0, in f32. A block takes BT tokens
    of BD channels."""
    tl.requires(D % MULTIPLE == 0 and T <= 1073741824)
    tl.grid(tl.cdiv(D, BD), tl.cdiv(T, BT), B)
    d, i, b = tl.bid(0), tl.bid(1), tl.bid(2)
    y = convolved(x, weight, bias, b, i * BT, d, W, BT, BD)
    s = tl.sigmoid(y, fast=True)
    slope = tl.where(silu != 0, s * (1 + y * (1 - s)), 1.0)
    tl.store(dy, (b, i, d), (tokens(dout, b, i * BT, d, BT, BD) * slope)[None, :, :], mask=True)
