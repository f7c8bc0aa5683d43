"""A kernel says how many blocks it needs."""

import tilec
from tilec import Dim, In, Out, bid, f32, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def missing_grid(x: In[f32, N], out: Out[f32, N]):
    #~^ E0110
    i = bid(0)
    v = load(x, i, shape=1)
    store(out, i, v)
