"""Depthwise causal convolution along the tokens, then SiLU."""

import tilec
from tilec import Const, Dim, Element, In, Out, bid, cdiv, f32, grid, load, requires, sigmoid, store, zeros


class E(Element):
    """bf16, f16 or f32"""


class B(Dim):
    """sequences"""


class T(Dim):
    """tokens of a sequence"""


class D(Dim):
    """channels"""


class W(Dim):
    """taps of the filter"""


@tilec.kernel
def causal_conv1d(
    x: In[E, B, T, D],
    weight: In[E, W, D],
    bias: In[E, D],
    out: Out[E, B, T, D],
    *,
    E: Const,
    W: Const,
    BT: Const,
    BD: Const,
):
    """`out[b, t, d] = silu(bias[d] + sum(weight[k, d] * x[b, t + k - (W - 1), d] for k in range(W)))`"""
    requires(D % 8 == 0)
    grid(cdiv(D, BD), cdiv(T, BT), B)
    d, t, b = bid(0), bid(1), bid(2)
    total = zeros((1, BT, BD), f32) + load(bias, d, shape=BD, pad=0).astype(f32)[None, None, :]
    for k in range(W):
        v = load(x, offset=(b, t * BT + k - (W - 1), d * BD), shape=(1, BT, BD), pad=0)
        tap = load(weight, (k, d), shape=(1, BD), pad=0).astype(f32)
        total = total + v.astype(f32) * tap[None, :, :]
    store(out, (b, t, d), (total * sigmoid(total)).astype(E), mask=True)
