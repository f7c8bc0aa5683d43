"""A read after a store does not return what was there before the launch."""

import tilec
from tilec import Dim, InOut, bid, ensures, grid, i32, load, store, values


class N(Dim):
    """elements"""


@tilec.kernel
def ensures_reread(positions: InOut[i32, N]):
    grid(N)
    values(positions, 0, 1000)
    ensures(positions, 1, 2, above=positions)
    store(positions, bid(0), load(positions, bid(0), shape=1) + 1)
    store(positions, bid(0), load(positions, bid(0), shape=1) % 1000 + 1)  #~ E0406
