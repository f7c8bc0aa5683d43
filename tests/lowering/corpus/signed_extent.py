"""An extent with a signed scalar that may be negative."""

import tilec
from tilec import Dim, In, InOut, bid, cdiv, f32, grid, i32, load, requires, store


class N(Dim):
    """added length"""


class M(Dim):
    """columns"""


@tilec.kernel
def signed_extent(y: In[f32, M], out: InOut[f32, M + N], N: i32):
    grid(cdiv(M, 64))
    requires(M <= 1000000, N > -1000, N < 1000)
    b = bid(0)
    store(out, b, load(y, b, shape=64, pad=0), mask=True)
