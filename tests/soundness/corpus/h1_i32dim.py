"""A masked store to a tensor whose extent is an i32 parameter."""

import tilec
from tilec import Dim, In, InOut, bid, cdiv, f32, grid, i32, load, requires, store


class N(Dim):
    """length"""


class M(Dim):
    """columns"""


@tilec.kernel
def h1_i32dim(y: In[f32, M], out: InOut[f32, N], N: i32):
    grid(cdiv(M, 64))
    requires(M <= 1000000)
    b = bid(0)
    v = load(y, b, shape=64, pad=0)
    store(out, b, v, mask=True)
