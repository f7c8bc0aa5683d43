"""A rank alone has no peers."""

import tilec
from tilec import Dim, Out, Peer, bid, f32, grid, i32, load, store


class N(Dim):
    """elements"""


@tilec.kernel
def one_rank(x: Peer[f32, 1, N], out: Out[f32, N], rank: i32):  #~ E0213
    grid(8)
    for i in range(bid(0), N, 8):
        store(out, i, load(x[0], i))
