"""The shapes of two tiles do not broadcast."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, store


class T(Dim):
    """number of rows"""


@tilec.kernel
def shapes(x: In[f32, T, 64], w: In[f32, 32], out: Out[f32, T, 64]):
    grid(T)
    row = bid(0)
    v = load(x, (row, 0), shape=(1, 64)) * load(w, 0, shape=32)  #~ E0202
    store(out, (row, 0), v)
