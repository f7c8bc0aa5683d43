"""A kernel has one grid."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def second_grid(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    grid(N)  #~ E0110
    i = bid(0)
    v = load(x, i, shape=1)
    store(out, i, v)
