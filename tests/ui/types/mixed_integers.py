"""Integers of two widths do not mix by themselves either."""

import tilec
from tilec import Dim, In, Out, bid, grid, i32, i64, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def mixed_integers(x: In[i32, N], y: In[i64, N], out: Out[i64, N]):
    grid(N)
    i = bid(0)
    v = load(x, i, shape=1) + load(y, i, shape=1)  #~ E0201
    store(out, i, v)
