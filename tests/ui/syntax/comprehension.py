"""Lists are not tiles."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def comprehension(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    i = bid(0)
    v = [load(x, j, shape=1) for j in range(2)]  #~ E0106
    store(out, i, v)
