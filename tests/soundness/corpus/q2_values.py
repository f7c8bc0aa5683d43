"""`values` that no contents satisfy."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, i32, load, store, values


class N(Dim):
    """n"""


@tilec.kernel
def q2_values(ix: In[i32, N], x: In[f32, N], out: Out[f32, N]):
    grid(N)
    values(ix, 5, 5)
    store(out, bid(0), load(x, load(ix, bid(0)) + 1000000))
