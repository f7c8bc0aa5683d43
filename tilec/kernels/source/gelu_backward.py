"""Gradient of the exact Gaussian error linear unit."""

import tilec as tl

SQRT_HALF = 0.7071067811865476
HALF_LOG2E = 0.7213475204444817
DENSITY = 0.3989422804014327


class E(tl.Element):
    """bf16, f16 or f32"""


class N(tl.Dim):
    """number of elements"""


@tl.kernel
def gelu_backward(x: tl.In[E, N], dout: tl.In[E, N], dx: tl.Out[E, N], *, E: tl.Const, BLOCK: tl.Const):
    """`dx = dout * (F(x) + x * f(x))`, with distribution F and density f of the standard normal, in f32, rounded once."""
    tl.grid(tl.cdiv(N, BLOCK))
    i = tl.bid(0)
    v = tl.load(x, i, shape=BLOCK, pad=0).astype(tl.f32)
    d = tl.load(dout, i, shape=BLOCK, pad=0).astype(tl.f32)
    below = 0.5 * (1 + tl.erf(v * SQRT_HALF))
    tl.store(dx, i, (d * (below + v * DENSITY * tl.exp2(v * v * -HALF_LOG2E, fast=True))).astype(E), mask=True)
