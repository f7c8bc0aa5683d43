"""A box that the threads of a block hold."""

import tilec
from tilec import Dim, In, Out, bid, cdiv, exp, f32, grid, load, store


class N(Dim):
    """rows"""


class M(Dim):
    """columns"""


@tilec.kernel
def too_many_operations_ok(x: In[f32, N, M], out: Out[f32, N, M]):
    grid(cdiv(N, 100), cdiv(M, 100))
    index = (bid(0), bid(1))
    v = load(x, index, shape=(100, 100), pad=0)
    store(out, index, exp(v) + v, mask=True)
