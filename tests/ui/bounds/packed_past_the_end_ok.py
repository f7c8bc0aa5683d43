"""Elements of 4 bits past the edge read as a number."""

import tilec as tl


class N(tl.Dim):
    """rows"""


class K(tl.Dim):
    """columns"""


@tl.kernel
def packed_past_the_end(w: tl.In[tl.u4, N, K], out: tl.Out[tl.f16, N, K]):
    tl.grid(N, tl.cdiv(K, 64))
    n, k = tl.bid(0), tl.bid(1)
    w_tile = tl.load(w, (n, k), shape=(1, 64), pad=0)
    tl.store(out, (n, k), w_tile.astype(tl.f16), mask=True)
