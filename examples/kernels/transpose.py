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
def transpose(x: In[E, M, N], out: Out[E, N, M], *, E: Const, BLOCK: Const):
    requires(M % 8 == 0, N % 8 == 0)
    grid(cdiv(N, BLOCK), cdiv(M, BLOCK))
    j, i = bid(0), bid(1)
    tile = load(x, (i, j), shape=(BLOCK, BLOCK), pad=0)
    store(out, (j, i), tile.T, mask=True)
