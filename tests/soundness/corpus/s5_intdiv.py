"""Plain element-wise integer division with a masked tail."""

import tilec
from tilec import Dim, In, Out, bid, cdiv, grid, i32, load, store


class N(Dim):
    """length"""


@tilec.kernel
def s5_intdiv(x: In[i32, N], y: In[i32, N], out: Out[i32, N]):
    grid(cdiv(N, 64))
    b = bid(0)
    q = load(x, b, shape=64, pad=0) // load(y, b, shape=64, pad=0)
    store(out, b, q, mask=True)
