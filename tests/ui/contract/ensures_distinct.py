"""Every slot is the number of a pair of elements."""

import tilec
from tilec import Dim, Out, bid, ensures, grid, i32, store


class N(Dim):
    """elements"""


@tilec.kernel
def ensures_distinct(slots: Out[i32, N]):
    grid(N)
    ensures(slots, 0, N, distinct=True)
    store(slots, bid(0), bid(0) // 2)  #~ E0406
