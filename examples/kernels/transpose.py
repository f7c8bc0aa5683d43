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
def transpose(x: In[E, M, N], out: Out[E, N, M], *, E: Const, BM: Const, BN: Const, GROUP: Const):
    """Blocks that run at the same time have tiles of a square of `x`, so that what they write lies together too."""
    requires(M % 8 == 0, N % 8 == 0)
    grid(GROUP, cdiv(N, BN), cdiv(M, BM * GROUP))
    i, j = bid(2) * GROUP + bid(0), bid(1)
    store(out, (j, i), load(x, (i, j), shape=(BM, BN), pad=0).T, mask=True)
