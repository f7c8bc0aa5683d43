"""Gated activation of a SwiGLU layer: `out = silu(gate) * up` (Shazeer, GLU Variants Improve Transformer, 2020)."""

import tilec
from tilec import Const, Dim, Element, In, Out, astype, bid, cdiv, f32, grid, load, sigmoid, store


class E(Element):
    """bf16 or f16"""


class N(Dim):
    """number of elements"""


@tilec.kernel
def silu_mul(gate: In[E, N], up: In[E, N], out: Out[E, N], *, E: Const, BLOCK: Const):
    """Combine the gate and up projections of N elements; computed in f32, rounded once."""
    grid(cdiv(N, BLOCK))
    i = bid(0)
    g = load(gate, i, shape=BLOCK, pad=0).astype(f32)
    u = load(up, i, shape=BLOCK, pad=0).astype(f32)
    store(out, i, astype(g * sigmoid(g) * u, E), mask=True)
