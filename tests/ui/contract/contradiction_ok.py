"""The sizes are ordered one way."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, requires, store


class N(Dim):
    """elements"""


class M(Dim):
    """elements of the source"""


@tilec.kernel
def contradiction_ok(x: In[f32, M], out: Out[f32, N]):
    grid(N)
    requires(N < M)
    store(out, bid(0), load(x, bid(0) + 1))
