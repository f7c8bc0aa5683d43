"""The tiles of a row lie side by side."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, store


class T(Dim):
    """number of rows"""


@tilec.kernel
def written_twice_ok(x: In[f32, T, 256], out: Out[f32, T, 256]):
    grid(T)
    row = bid(0)
    for j in range(0, 256, 64):
        v = load(x, offset=(row, j), shape=(1, 64))
        store(out, v, offset=(row, j))
