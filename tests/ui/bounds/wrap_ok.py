"""A flat index in i64.

Constants: H = 4096
"""

import tilec
from tilec import Const, Dim, In, Out, bid, f32, grid, i64, load, store


class H(Dim):
    """elements of a row"""


class T(Dim):
    """number of rows"""


@tilec.kernel
def wrap_ok(x: In[f32, T * H], out: Out[f32, T, 64], *, H: Const):
    grid(T)
    row = bid(0)
    v = load(x, offset=i64(row) * H, shape=64)
    store(out, (row, 0), v.reshape((1, 64)))
