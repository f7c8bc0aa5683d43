"""The launcher refuses sizes that are not whole tiles."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, requires, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def dropped_block_ok(x: In[f32, N], out: Out[f32, N]):
    grid(N // 1024)
    requires(N % 1024 == 0)
    i = bid(0)
    v = load(x, i, shape=1024)
    store(out, i, v * 2.0)
