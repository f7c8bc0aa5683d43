"""A guarded division of data: where(y != 0, x // y, 7)."""

import tilec
from tilec import Dim, In, Out, bid, grid, i32, load, store, where


class N(Dim):
    """n"""


@tilec.kernel
def s2_divzero(x: In[i32, N, 128], y: In[i32, N, 128], out: Out[i32, N, 128]):
    grid(N)
    b = bid(0)
    v = load(x, (b, 0), shape=(1, 128))
    w = load(y, (b, 0), shape=(1, 128))
    q = v // w
    store(out, (b, 0), where(w != 0, q, 7))
