"""The branches leave different types."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, i32, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def branch_types(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    i = bid(0)
    v = load(x, i, shape=1)
    if i > 0:  #~ E0209
        w = v
    else:
        w = v.astype(i32)
    store(out, i, w)
