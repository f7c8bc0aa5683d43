"""Elements of an `InOut` that are not written hold what they held."""

import tilec
from tilec import Dim, InOut, bid, ensures, grid, i32, store


class N(Dim):
    """elements"""


@tilec.kernel
def ensures_unwritten(ids: InOut[i32, N]):
    grid((N + 1) // 2)
    ensures(ids, 0, 1)
    store(ids, 2 * bid(0), 0)  #~ E0403
