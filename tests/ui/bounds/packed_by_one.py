"""Each block reads the element of 4 bits after its own, which the last one of a row does not have."""

import tilec as tl


class N(tl.Dim):
    """rows"""


class K(tl.Dim):
    """columns"""


@tl.kernel
def packed_by_one(w: tl.In[tl.i4, N, K], out: tl.Out[tl.i32, N, K]):
    tl.grid(N, K)
    n, k = tl.bid(0), tl.bid(1)
    tl.store(out, (n, k), tl.load(w, (n, k + 1)).astype(tl.i32))  #~ E0301
