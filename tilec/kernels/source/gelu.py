"""Gaussian error linear unit (Hendrycks and Gimpel, 2016), exact."""

import tilec as tl

SQRT_HALF = 0.7071067811865476


class E(tl.Element):
    """bf16, f16 or f32"""


class N(tl.Dim):
    """number of elements"""


@tl.kernel
def gelu(x: tl.In[E, N], out: tl.Out[E, N], *, E: tl.Const, BLOCK: tl.Const):
    """`out = x * (1 + erf(x / sqrt(2))) / 2`, in f32, rounded once."""
    tl.grid(tl.cdiv(N, BLOCK))
    i = tl.bid(0)
    v = tl.load(x, i, shape=BLOCK, pad=0).astype(tl.f32)
    tl.store(out, i, (0.5 * v * (1 + tl.erf(v * SQRT_HALF))).astype(E), mask=True)
