"""A block id of an axis that the grid lacks."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def missing_axis(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    i = bid(1)  #~ E0110
    store(out, i, load(x, i))
