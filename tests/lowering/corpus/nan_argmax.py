"""A branch that contains a reduction, with a condition computed by argmax."""

import tilec
from tilec import Dim, In, Out, argmax, bid, f32, grid, load, max, store


class N(Dim):
    """rows"""


@tilec.kernel
def nan_argmax(x: In[f32, N, 1024], out: Out[f32, N]):
    grid(N)
    b = bid(0)
    v = load(x, (b, 0), shape=(1, 1024)).reshape((1024,))
    p = argmax(v)
    t = 0.0
    if p < 100:
        t = max(v)
    store(out, b, t)
