"""What holds in one branch does not hold after both."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, store


class T(Dim):
    """number of rows"""


@tilec.kernel
def stale_join(x: In[f32, T, 64], out: Out[f32, T, 64]):
    grid(T)
    row = bid(0)
    if row < T - 1:
        source = row
    else:
        source = row + 1
    v = load(x, (source, 0), shape=(1, 64))  #~ E0301
    store(out, (row, 0), v)
