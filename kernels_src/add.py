"""Element-wise sum: `out[i] = x[i] + y[i]`."""

import tilec
from tilec import Const, Dim, Element, In, Out, bid, cdiv, grid, load, store


class E(Element):
    """bf16 or f16"""


class N(Dim):
    """number of elements"""


@tilec.kernel
def add(x: In[E, N], y: In[E, N], out: Out[E, N], *, E: Const, BLOCK: Const):
    """Add two tensors of N elements; each block adds BLOCK of them."""
    grid(cdiv(N, BLOCK))
    i = bid(0)
    total = load(x, i, shape=BLOCK, pad=0) + load(y, i, shape=BLOCK, pad=0)
    store(out, i, total, mask=True)
