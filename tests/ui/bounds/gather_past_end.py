"""The index tile of a gather runs one past the end."""

import tilec
from tilec import Dim, In, Out, arange, bid, f32, gather, grid, store, sum


class N(Dim):
    """number of elements"""


@tilec.kernel
def gather_past_end(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    i = bid(0)
    v = gather(x, (i + arange(2),))  #~ E0303
    store(out, i, sum(v, axis=0).reshape((1,)))
