"""Element-wise sum: `out[i] = x[i] + y[i]`."""

import tilec as tl

from .dims import E


class N(tl.Dim):
    """number of elements"""


@tl.kernel
def add(x: tl.In[E, N], y: tl.In[E, N], out: tl.Out[E, N], *, E: tl.Const, BLOCK: tl.Const):
    """Add two tensors of N elements; each block adds BLOCK of them."""
    tl.grid(tl.cdiv(N, BLOCK))
    i = tl.bid(0)
    total = tl.load(x, i, shape=BLOCK, pad=0) + tl.load(y, i, shape=BLOCK, pad=0)
    tl.store(out, i, total, mask=True)
