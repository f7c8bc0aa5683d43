"""Tiles of two dtypes do not mix by themselves."""

import tilec
from tilec import Dim, In, Out, bf16, bid, f16, grid, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def mixed_dtypes(x: In[f16, N], y: In[bf16, N], out: Out[f16, N]):
    grid(N)
    i = bid(0)
    v = load(x, i, shape=1) + load(y, i, shape=1)  #~ E0201
    store(out, i, v)
