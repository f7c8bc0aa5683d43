"""A block reads an element of 4 bits that shares its byte with those of the next block."""

import tilec as tl


class N(tl.Dim):
    """rows"""


class K(tl.Dim):
    """columns"""


@tl.kernel
def packed_read(w: tl.InOut[tl.u4, N, "2 * K"]):
    tl.requires(K % 4 == 0)
    tl.grid(N, K // 4)
    n, k = tl.bid(0), tl.bid(1)
    after = tl.load(w, offset=(n, k * 8 + 1), shape=(1, 8), pad=0)  #~ E0402
    tl.store(w, (n, k), after)
