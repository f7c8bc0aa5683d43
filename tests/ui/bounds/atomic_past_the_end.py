"""Atomic updates are held to the same bounds, and named by the word that was written."""

import tilec
from tilec import Atomic, Dim, In, atomic_max, bid, grid, i32, load


class N(Dim):
    """number of elements"""


@tilec.kernel
def atomic_past_the_end(x: In[i32, N], high: Atomic[i32, N]):
    grid(N)
    i = bid(0)
    atomic_max(high, i + 1, load(x, i, shape=1))  #~ E0302
