"""A grid rounded down leaves the end of the tensor unwritten."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def dropped_block(x: In[f32, N], out: Out[f32, N]):
    grid(N // 1024)
    i = bid(0)
    v = load(x, i, shape=1024)
    store(out, i, v * 2.0)  #~ E0403
