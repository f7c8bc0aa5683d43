"""`out = x.T`"""

import tilec as tl


class E(tl.Element):
    """any dtype"""


class M(tl.Dim):
    """rows"""


class N(tl.Dim):
    """columns"""


@tl.kernel
def transpose(x: tl.In[E, M, N], out: tl.Out[E, N, M], *, E: tl.Const, BM: tl.Const, BN: tl.Const):
    """Blocks that run at the same time have tiles below each other, so that together they write whole rows of `out`."""
    tl.requires(M % 8 == 0, N % 8 == 0)
    tl.grid(tl.cdiv(M, BM), tl.cdiv(N, BN))
    i, j = tl.bid(0), tl.bid(1)
    tl.store(out, (j, i), tl.load(x, (i, j), shape=(BM, BN), pad=0).T, mask=True)
