"""A flat index leaves i32 long before the tensor ends.

Constants: H = 4096
"""

import tilec
from tilec import Const, Dim, In, Out, bid, f32, grid, load, store


class N(Dim):
    """elements"""


class T(Dim):
    """number of rows"""


@tilec.kernel
def wrap(x: In[f32, N], out: Out[f32, T, 64], *, H: Const):
    grid(T)
    row = bid(0)
    v = load(x, offset=row * H, shape=64, pad=0)  #~ E0304
    store(out, (row, 0), v.reshape((1, 64)))
