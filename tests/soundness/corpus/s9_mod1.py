"""Element-wise modulo, one element per block."""

import tilec
from tilec import Dim, In, Out, bid, grid, i32, load, store


class N(Dim):
    """length"""


class M(Dim):
    """length of y"""


@tilec.kernel
def s9_mod1(x: In[i32, N], y: In[i32, M], out: Out[i32, N]):
    grid(N)
    b = bid(0)
    store(out, b, load(x, b) % load(y, b, pad=0))
