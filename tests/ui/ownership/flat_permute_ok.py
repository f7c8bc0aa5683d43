"""Rows and heads change places; every block has a row of its own.

Constants: HEADS = 32, D = 128
"""

import tilec
from tilec import Const, Dim, In, Out, bf16, bid, grid, load, requires, store


class D(Dim):
    """elements of a head"""


class HEADS(Dim):
    """number of heads"""


class M(Dim):
    """number of rows"""


@tilec.kernel
def flat_permute_ok(x: In[bf16, M, HEADS, D], out: Out[bf16, HEADS * M, D], *, HEADS: Const, D: Const):
    grid(M, HEADS)
    requires(M <= 4096)
    m = bid(0)
    h = bid(1)
    v = load(x, (m, h, 0), shape=(1, 1, D))
    store(out, (h * M + m, 0), v.reshape((1, D)))
