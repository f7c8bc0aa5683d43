"""A tile is no condition."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def tile_condition(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    i = bid(0)
    v = load(x, i, shape=1)
    if v > 0:  #~ E0210
        store(out, i, v)
