"""Each block writes whole bytes of its own."""

import tilec as tl


class N(tl.Dim):
    """rows"""


class K(tl.Dim):
    """columns"""


@tl.kernel
def packed_overlap(x: tl.In[tl.f32, N, K], out: tl.InOut[tl.i4, N, K]):
    tl.requires(K % 8 == 0)
    tl.grid(N, K // 8)
    n, k = tl.bid(0), tl.bid(1)
    codes = tl.load(x, offset=(n, k * 8), shape=(1, 8), pad=0).astype(tl.i4)
    tl.store(out, codes, offset=(n, k * 8), mask=True)
