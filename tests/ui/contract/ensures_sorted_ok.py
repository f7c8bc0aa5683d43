"""Offsets of pairs rise."""

import tilec
from tilec import Dim, Out, bid, ensures, grid, i32, store


class N(Dim):
    """elements"""


@tilec.kernel
def ensures_sorted_ok(offsets: Out[i32, N]):
    grid(N)
    ensures(offsets, 0, N, sorted=True)
    store(offsets, bid(0), bid(0) // 2)
