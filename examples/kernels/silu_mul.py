"""Gated activation of a SwiGLU layer: `out = silu(gate) * up` (Shazeer, GLU Variants Improve Transformer, 2020)."""

import tilec as tl


class E(tl.Element):
    """bf16 or f16"""


class N(tl.Dim):
    """number of elements"""


@tl.kernel
def silu_mul(gate: tl.In[E, N], up: tl.In[E, N], out: tl.Out[E, N], *, E: tl.Const, BLOCK: tl.Const):
    """Combine the gate and up projections of N elements; computed in f32, rounded once."""
    tl.grid(tl.cdiv(N, BLOCK))
    i = tl.bid(0)
    g = tl.load(gate, i, shape=BLOCK, pad=0).astype(tl.f32)
    u = tl.load(up, i, shape=BLOCK, pad=0).astype(tl.f32)
    tl.store(out, i, tl.astype(g * tl.sigmoid(g, fast=True) * u, E), mask=True)
