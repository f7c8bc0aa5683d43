"""Gated activation of a SwiGLU layer (Shazeer, GLU Variants Improve Transformer, 2020)."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class N(tl.Dim):
    """number of elements"""


@tl.kernel
def swiglu(gate: tl.In[E, N], up: tl.In[E, N], out: tl.Out[E, N], *, E: tl.Const, BLOCK: tl.Const):
    """`out = silu(gate) * up`, where `silu(x) = x * sigmoid(x)`, in f32, rounded once."""
    tl.grid(tl.cdiv(N, BLOCK))
    i = tl.bid(0)
    g = tl.load(gate, i, shape=BLOCK, pad=0).astype(tl.f32)
    u = tl.load(up, i, shape=BLOCK, pad=0).astype(tl.f32)
    tl.store(out, i, (g * tl.sigmoid(g, fast=True) * u).astype(E), mask=True)
