"""A name is set in one branch only."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def half_set(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    i = bid(0)
    v = load(x, i, shape=1)
    if i > 0:  #~ E0209
        w = v
    store(out, i, w)
