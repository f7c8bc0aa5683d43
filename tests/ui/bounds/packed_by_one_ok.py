"""Single elements of 4 bits, at even and odd places."""

import tilec as tl


class N(tl.Dim):
    """rows"""


class K(tl.Dim):
    """columns"""


@tl.kernel
def packed_by_one(w: tl.In[tl.i4, N, K], out: tl.Out[tl.i32, N, K]):
    tl.grid(N, K)
    n, k = tl.bid(0), tl.bid(1)
    tl.store(out, (n, k), tl.load(w, (n, k)).astype(tl.i32))
