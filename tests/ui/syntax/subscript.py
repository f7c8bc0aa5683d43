"""Tensors are read with `load`."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def subscript(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    i = bid(0)
    v = x[i]  #~ E0106
    store(out, i, v)
