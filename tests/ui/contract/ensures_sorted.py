"""Offsets fall."""

import tilec
from tilec import Dim, Out, bid, ensures, grid, i32, store


class N(Dim):
    """elements"""


@tilec.kernel
def ensures_sorted(offsets: Out[i32, N]):
    grid(N)
    ensures(offsets, 0, N, sorted=True)
    store(offsets, bid(0), N - 1 - bid(0))  #~ E0406
