"""All pairs of 1024 elements are more than the registers of a block."""

import tilec
from tilec import Dim, In, Out, bid, exp, f32, grid, load, max, store, sum


class N(Dim):
    """rows"""


@tilec.kernel
def tile_too_large(x: In[f32, N, 1024], out: Out[f32, N, 1024]):
    grid(N)
    a = load(x, (bid(0), 0), shape=(1, 1024)).reshape((1024,))
    s = a[:, None] * a[None, :]  #~ E0530
    p = exp(s - max(s, axis=1)[:, None])
    store(out, (bid(0), 0), sum(p, axis=1).reshape((1, 1024)))
