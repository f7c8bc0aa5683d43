"""Elements before the first read as zero."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def before_start_ok(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    i = bid(0)
    before = load(x, offset=i - 1, shape=1, pad=0)
    store(out, i, before)
