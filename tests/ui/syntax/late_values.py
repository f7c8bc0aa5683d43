"""Launch facts stand at the top level."""

import tilec
from tilec import Dim, In, Out, bid, grid, i32, load, store, values


class N(Dim):
    """number of elements"""


@tilec.kernel
def late_values(ids: In[i32, N], out: Out[i32, N]):
    grid(N)
    i = bid(0)
    if i > 0:
        values(ids, 0, N)  #~ E0109
    store(out, i, load(ids, i, shape=1))
