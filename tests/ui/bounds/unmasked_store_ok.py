"""The last tile is clipped."""

import tilec
from tilec import Dim, In, Out, bid, cdiv, f32, grid, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def unmasked_store_ok(x: In[f32, N], out: Out[f32, N]):
    grid(cdiv(N, 1024))
    i = bid(0)
    v = load(x, i, shape=1024, pad=0)
    store(out, i, v, mask=True)
