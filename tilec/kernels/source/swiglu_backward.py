"""Gradients of the gated activation of a SwiGLU layer."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class N(tl.Dim):
    """number of elements"""


@tl.kernel
def swiglu_backward(
    gate: tl.In[E, N],
    up: tl.In[E, N],
    dout: tl.In[E, N],
    dgate: tl.Out[E, N],
    dup: tl.Out[E, N],
    *,
    E: tl.Const,
    BLOCK: tl.Const,
):
    """`dup = dout * silu(gate)` and `dgate = dout * up * s * (1 + gate * (1 - s))` with `s = sigmoid(gate)`, in f32, each
    rounded once."""
    tl.grid(tl.cdiv(N, BLOCK))
    i = tl.bid(0)
    g = tl.load(gate, i, shape=BLOCK, pad=0).astype(tl.f32)
    u = tl.load(up, i, shape=BLOCK, pad=0).astype(tl.f32)
    d = tl.load(dout, i, shape=BLOCK, pad=0).astype(tl.f32)
    s = tl.sigmoid(g, fast=True)
    tl.store(dgate, i, (d * u * s * (1 + g * (1 - s))).astype(E), mask=True)
    tl.store(dup, i, (d * g * s).astype(E), mask=True)
