"""`Out` tensors are written only."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def load_from_out(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    i = bid(0)
    v = load(out, i, shape=1)  #~ E0207
    store(out, i, v)
