"""Two roundings of one number, to bf16 and to f16: they were taken for the same number."""

from typing import Literal

import tilec as tl


class N(tl.Dim):
    """numbers"""


@tl.kernel
def v4_two_roundings(x: tl.In[tl.f32, N], t: tl.In[tl.f32, Literal[1]], out: tl.Out[tl.f32, N]):
    tl.grid(N)
    v = tl.load(x, tl.bid(0))
    a, b = v.astype(tl.bf16).astype(tl.f32), v.astype(tl.f16).astype(tl.f32)
    at = tl.where(a > 1.0, 0, tl.where(b > 1.0, 1, 0))
    tl.store(out, tl.bid(0), tl.load(t, at))
