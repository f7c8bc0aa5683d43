"""Two comparisons of a converted integer: its declared range was taken for that of what they can give."""

from typing import Literal

import tilec as tl


class N(tl.Dim):
    """numbers"""


@tl.kernel
def v1_declared_class(ids: tl.In[tl.i32, N], t: tl.In[tl.f32, Literal[1]], out: tl.Out[tl.f32, N]):
    tl.grid(N)
    tl.values(ids, 100, 200)
    v = tl.load(ids, tl.bid(0)).astype(tl.f32)
    j = tl.where(v > 6.5, 5, 0)
    q = tl.where(v > 7.5, 1.0, 0.0)
    tl.store(out, tl.bid(0), tl.load(t, j) + q)
