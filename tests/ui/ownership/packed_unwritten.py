"""Blocks write every other byte."""

import tilec as tl


class N(tl.Dim):
    """rows"""


class K(tl.Dim):
    """columns"""


@tl.kernel
def packed_unwritten(x: tl.In[tl.f32, N, K], out: tl.Out[tl.u4, N, K]):
    tl.requires(K % 4 == 0)
    tl.grid(N, K // 4)
    n, k = tl.bid(0), tl.bid(1)
    codes = tl.load(x, offset=(n, k * 4), shape=(1, 2)).astype(tl.u4)
    tl.store(out, codes, offset=(n, k * 4))  #~ E0403
