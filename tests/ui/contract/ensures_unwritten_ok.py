"""What is not written is bounded before the launch."""

import tilec
from tilec import Dim, InOut, bid, ensures, grid, i32, store, values


class N(Dim):
    """elements"""


@tilec.kernel
def ensures_unwritten_ok(ids: InOut[i32, N]):
    grid((N + 1) // 2)
    values(ids, 0, 1)
    ensures(ids, 0, 1)
    store(ids, 2 * bid(0), 0)
