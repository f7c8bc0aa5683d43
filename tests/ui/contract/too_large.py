"""A contract that only sizes beyond the largest satisfy, through a product."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, requires, store


class N(Dim):
    """rows"""


class M(Dim):
    """columns"""


@tilec.kernel
def too_large(x: In[f32, N, M], out: Out[f32, N]):
    grid(N)
    requires(N >= 65536, M >= 65536)  #~ E0307
    requires(N * M <= 65536)
    store(out, bid(0), load(x, (bid(0), 0)).reshape((1,)))
