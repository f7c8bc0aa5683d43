"""The first block reads the element before the first."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def before_start(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    i = bid(0)
    before = load(x, offset=i - 1, shape=1)  #~ E0301
    store(out, i, before)
