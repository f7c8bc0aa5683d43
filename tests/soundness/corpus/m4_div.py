"""An extent with a division whose dividend may be negative."""

import tilec
from tilec import Dim, In, Out, bid, cdiv, f32, grid, load, requires, store


class N(Dim):
    """rows"""


class M(Dim):
    """columns"""


@tilec.kernel
def m4_div(x: In[f32, N], y: In[f32, M], out: Out[f32, M + (N - 5) // 2]):
    requires(M <= 1000000, N <= 1000000)
    grid(cdiv(M + (N - 5) // 2, 64))
    b = bid(0)
    v = load(y, b, shape=64, pad=0)
    store(out, b, v, mask=True)
