"""`out = x.T`"""

import tilec
from tilec import Const, Dim, Element, In, Out, bid, cdiv, grid, load, requires, store


class E(Element):
    """any dtype"""


class M(Dim):
    """rows"""


class N(Dim):
    """columns"""


@tilec.kernel
def transpose(x: In[E, M, N], out: Out[E, N, M], *, E: Const, BM: Const, BN: Const):
    """Blocks that run at the same time have tiles below each other, so that together they write whole rows of `out`."""
    requires(M % 8 == 0, N % 8 == 0)
    grid(cdiv(M, BM), cdiv(N, BN))
    i, j = bid(0), bid(1)
    store(out, (j, i), load(x, (i, j), shape=(BM, BN), pad=0).T, mask=True)
