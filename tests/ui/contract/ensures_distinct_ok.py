"""Every slot is its own place, from the last to the first."""

import tilec
from tilec import Dim, Out, bid, ensures, grid, i32, store


class N(Dim):
    """elements"""


@tilec.kernel
def ensures_distinct_ok(slots: Out[i32, N]):
    grid(N)
    ensures(slots, 0, N, distinct=True)
    store(slots, bid(0), N - 1 - bid(0))
