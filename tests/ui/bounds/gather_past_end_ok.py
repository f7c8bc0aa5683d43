"""Positions past the end read as zero."""

import tilec
from tilec import Dim, In, Out, arange, bid, f32, gather, grid, store, sum


class N(Dim):
    """number of elements"""


@tilec.kernel
def gather_past_end_ok(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    i = bid(0)
    v = gather(x, (i + arange(2),), pad=0)
    store(out, i, sum(v, axis=0).reshape((1,)))
