"""The race of the cuTile Rust paper: the store swaps the row and the head.

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
def head_permute(x: In[bf16, M, HEADS, D], out: Out[bf16, HEADS * M, D], *, HEADS: Const, D: Const):
    grid(M, HEADS)
    requires(M <= 4096)
    m = bid(0)
    h = bid(1)
    v = load(x, (m, h, 0), shape=(1, 1, D))
    store(out, (m * M + h, 0), v.reshape((1, D)))  #~ E0302 E0401 E0403
