"""Sums of the blocks of a vector whose length is a multiple of the block."""

import tilec
from tilec import Const, Dim, In, Out, bid, f32, grid, load, requires, reshape, store, sum


class N(Dim):
    """elements"""


class P(Dim):
    """blocks"""


@tilec.kernel
def block_sum(x: In[f32, N], out: Out[f32, P], *, BLOCK: Const):
    """`out[p] = sum(x[p * BLOCK : (p + 1) * BLOCK])`."""
    grid(P)
    requires(P * BLOCK == N)
    part = bid(0)
    store(out, part, reshape(sum(load(x, offset=part * BLOCK, shape=BLOCK), axis=0), (1,)))
