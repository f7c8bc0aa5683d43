"""A parameter has a tensor for each rank."""

import tilec
from tilec import Dim, Out, Peer, Signal, bid, f32, grid, i32, load, meet, store


class N(Dim):
    """elements"""


@tilec.kernel
def whole_peer(x: Peer[f32, 2, N], out: Out[f32, N], signals: Signal[2, 8], rank: i32):
    grid(8)
    meet(signals, rank)
    for i in range(bid(0), N, 8):
        store(out, i, load(x, i))  #~ E0217
