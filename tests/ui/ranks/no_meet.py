"""Ranks never meet."""

import tilec
from tilec import Dim, Out, Peer, Signal, bid, f32, grid, i32, load, store


class N(Dim):
    """elements"""


@tilec.kernel
def no_meet(x: Peer[f32, 2, N], out: Out[f32, N], signals: Signal[2, 8], rank: i32):
    grid(8)
    for i in range(bid(0), N, 8):
        store(out, i, load(x[0], i) + load(x[1], i))  #~ E0407
