"""Transpose of a matrix, a square tile a block."""

import tilec
from tilec import Const, Dim, Element, In, Out, bid, cdiv, grid, load, store


class E(Element):
    """bf16 or f16"""


class M(Dim):
    """rows"""


class N(Dim):
    """columns"""


@tilec.kernel
def transpose(x: In[E, M, N], out: Out[E, N, M], *, E: Const, BLOCK: Const):
    """`out[n, m] = x[m, n]`."""
    grid(cdiv(M, BLOCK), cdiv(N, BLOCK))
    m, n = bid(0), bid(1)
    tile = load(x, (m, n), shape=(BLOCK, BLOCK), pad=0)
    store(out, (n, m), tile.T, mask=True)
