"""A position may leave its type, and then it is no growth."""

import tilec
from tilec import Dim, InOut, bid, ensures, grid, i32, load, store


class N(Dim):
    """elements"""


@tilec.kernel
def ensures_wrap(positions: InOut[i32, N]):
    grid(N)
    ensures(positions, 1, 2, above=positions)
    store(positions, bid(0), load(positions, bid(0), shape=1) + 1)  #~ E0304
