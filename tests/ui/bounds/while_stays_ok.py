"""A binary search."""

import tilec
from tilec import Dim, In, Out, bid, grid, i32, invariant, load, requires, store


class N(Dim):
    """number of sorted elements"""


class B(Dim):
    """number of wanted elements"""


@tilec.kernel
def while_stays_ok(x: In[i32, N], wanted: In[i32, B], out: Out[i32, B]):
    grid(B)
    requires(N <= 1000000)
    w = load(wanted, bid(0))
    low, high = i32(0), N
    while low < high:
        invariant(low >= 0, low <= high, high <= N)
        middle = (low + high) // 2
        if load(x, middle) < w:
            low = middle + 1
        else:
            high = middle
    store(out, bid(0), low)
