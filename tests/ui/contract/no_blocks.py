"""A grid that never has a block."""

import tilec
from tilec import Dim, InOut, bid, f32, grid, store


class N(Dim):
    """elements"""


@tilec.kernel
def no_blocks(out: InOut[f32, N]):  #~ E0307
    grid((N % 4) // 4)
    store(out, bid(0), 1.0)
