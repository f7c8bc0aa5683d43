"""Tensors are written with `store`."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load


class N(Dim):
    """number of elements"""


@tilec.kernel
def assigned_element(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    i = bid(0)
    v = load(x, i, shape=1)
    out[i] = v  #~ E0105
