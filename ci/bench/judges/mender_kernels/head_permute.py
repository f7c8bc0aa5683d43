"""Rows of heads become heads of rows."""

from typing import Literal

import tilec
from tilec import Const, Dim, In, Out, bf16, bid, grid, load, requires, store


class D(Dim):
    """elements of a head"""


class HEADS(Dim):
    """number of heads"""


class M(Dim):
    """number of rows"""


@tilec.kernel
def head_permute(x: In[bf16, M, HEADS, D], out: Out[bf16, Literal["HEADS * M"], D], *, HEADS: Const, D: Const):
    """`out[h * M + m] = x[m, h]`."""
    grid(M, HEADS)
    requires(M <= 4096)
    m, h = bid(0), bid(1)
    v = load(x, (m, h, 0), shape=(1, 1, D))
    store(out, (h * M + m, 0), v.reshape((1, D)))
