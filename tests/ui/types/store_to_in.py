"""`In` tensors are read only."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def store_to_in(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    i = bid(0)
    v = load(x, i, shape=1)
    store(x, i, v)  #~ E0207
    store(out, i, v)
