"""Depthwise 3x3 convolution, NHWC, stride 1, padded by 1."""

import tilec as tl


class E(tl.Element):
    """bf16 or f16"""


class B(tl.Dim):
    """images"""


class H(tl.Dim):
    """rows"""


class W(tl.Dim):
    """columns"""


class C(tl.Dim):
    """channels"""


@tl.kernel
def depthwise3x3(
    x: tl.In[E, B, H, W, C],
    weight: tl.In[E, 3, 3, C],
    bias: tl.In[E, C],
    out: tl.Out[E, B, H, W, C],
    *,
    E: tl.Const,
    BW: tl.Const,
    BC: tl.Const,
):
    """`out[b, h, w, c] = bias[c] + sum(x[b, h + i - 1, w + j - 1, c] * weight[i, j, c])`"""
    channels = tl.cdiv(C, BC)
    tl.grid(channels * tl.cdiv(W, BW), H, B)
    c, w = tl.bid(0) % channels, tl.bid(0) // channels
    h, b = tl.bid(1), tl.bid(2)
    acc = tl.zeros((BW, BC), tl.f32) + tl.load(bias, c, shape=BC, pad=0).astype(tl.f32)[None, :]
    for i in tl.static_range(3):
        for j in tl.static_range(3):
            v = tl.load(x, offset=(b, h + i - 1, w * BW + j - 1, c * BC), shape=(1, 1, BW, BC), pad=0)
            k = tl.load(weight, (i, j, c), shape=(1, 1, BC), pad=0)
            acc = acc + v.reshape((BW, BC)).astype(tl.f32) * k.reshape((1, BC)).astype(tl.f32)
    tl.store(out, (b, h, w, c), acc.astype(E).reshape((1, 1, BW, BC)), mask=True)
