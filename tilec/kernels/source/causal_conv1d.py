"""Depthwise causal convolution along the tokens, then SiLU if that is asked for."""

from causal_parts import B, D, E, T, W, convolved

import tilec as tl


@tl.kernel
def causal_conv1d(
    x: tl.In[E, B, T, D],
    weight: tl.In[E, D, W],
    bias: tl.In[E, D],
    out: tl.Out[E, B, T, D],
    silu: tl.i32,
    *,
    E: tl.Const,
    W: tl.Const,
    BT: tl.Const,
    BD: tl.Const,
    MULTIPLE: tl.Const,
):
    """`out[b, t, d] = y`, or `y * sigmoid(y)` if `silu` is not 0, with `y = bias[d] + sum(weight[d, k] * x[b, t + k - (W - 1),
    d] for k in range(W))`; in f32, rounded once. A block takes BT tokens of BD channels."""
    tl.requires(D % MULTIPLE == 0 and T <= 1073741824)
    tl.grid(tl.cdiv(D, BD), tl.cdiv(T, BT), B)
    d, i, b = tl.bid(0), tl.bid(1), tl.bid(2)
    y = convolved(x, weight, bias, b, i * BT, d, W, BT, BD)
    y = y * tl.where(silu != 0, tl.sigmoid(y, fast=True), 1.0)
    tl.store(out, (b, i, d), y.astype(E)[None, :, :], mask=True)
