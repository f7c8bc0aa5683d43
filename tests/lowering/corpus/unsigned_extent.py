"""An extent computed from an unsigned scalar."""

import tilec
from tilec import Dim, In, InOut, bid, cdiv, f32, grid, load, requires, store, u32


class N(Dim):
    """offset length"""


class M(Dim):
    """columns"""


@tilec.kernel
def unsigned_extent(y: In[f32, M], out: InOut[f32, N - 2147483648], N: u32):
    grid(cdiv(M, 64))
    requires(M <= 1000000)
    b = bid(0)
    v = load(y, b, shape=64, pad=0)
    store(out, b, v, mask=True)
