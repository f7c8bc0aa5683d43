"""Two blocks would write halves of one byte; neither is a mask a reason to write one."""

import tilec as tl


class N(tl.Dim):
    """rows"""


class K(tl.Dim):
    """columns"""


@tl.kernel
def packed_half_byte(x: tl.In[tl.f32, N, K], out: tl.Out[tl.i4, N, K], first: tl.i32):
    tl.grid(N, K)
    n, k = tl.bid(0), tl.bid(1)
    tl.store(out, (n, k), tl.load(x, (n, k)).astype(tl.i4))  #~ E0219
    tl.store(out, (n, k), tl.load(x, (n, k), shape=(1, 3), pad=0).astype(tl.i4), mask=True)  #~ E0219
    four = tl.load(x, (n, k), shape=(1, 4), pad=0).astype(tl.i4)
    tl.store(out, four, offset=(n, 4 * k + 1), mask=True)  #~ E0219
    tl.store(out, four, offset=(n, first), mask=True)  #~ E0219
