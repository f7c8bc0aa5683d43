"""An odd offset that is -1 in the first block."""

import tilec as tl


class N(tl.Dim):
    """rows"""


class K(tl.Dim):
    """columns"""


@tl.kernel
def packed_before_the_start(w: tl.In[tl.f4e2m1, N, K], out: tl.Out[tl.f32, N, K]):
    tl.requires(K % 8 == 0)
    tl.grid(N, K // 8)
    n, k = tl.bid(0), tl.bid(1)
    w_tile = tl.load(w, offset=(n, k * 8 - 1), shape=(1, 8))  #~ E0301
    tl.store(out, (n, k), w_tile.astype(tl.f32))
