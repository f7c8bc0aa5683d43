"""The arms of a branch on data write different elements: neither is certain to be written."""

import tilec
from tilec import Dim, In, Out, bid, f32, full, grid, load, store, zeros


class N(Dim):
    """rows"""


@tilec.kernel
def both_arms(x: In[f32, N], out: Out[f32, N, 2]):
    grid(N)
    b = bid(0)
    if load(x, b) > 0.5:
        store(out, (b, 0), full((1, 1), 1.0, f32))  #~ E0403
    else:
        store(out, (b, 1), zeros((1, 1), f32))
