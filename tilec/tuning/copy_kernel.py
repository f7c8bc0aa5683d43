"""A copy kernel: it measures the attainable memory bandwidth on the same GPU in the same run as other kernels."""

import tilec
from tilec import Const, Dim, In, Out, bid, cdiv, grid, i32, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def copy_kernel(x: In[i32, N], out: Out[i32, N], *, BLOCK: Const):
    """`out = x`; BLOCK elements a block."""
    grid(cdiv(N, BLOCK))
    store(out, bid(0), load(x, bid(0), shape=BLOCK, pad=0), mask=True)
