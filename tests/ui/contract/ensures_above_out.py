"""A tensor that is only written holds nothing before the launch."""

import tilec
from tilec import Dim, Out, bid, ensures, full, grid, i32, store


class N(Dim):
    """elements"""


@tilec.kernel
def ensures_above_out(ids: Out[i32, N], out: Out[i32, N]):
    grid(N)
    ensures(ids, 0, 1, above=out)  #~ E0207
    store(out, bid(0), full((1,), 0, i32))
    store(ids, bid(0), full((1,), 0, i32))
