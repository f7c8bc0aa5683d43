"""Blocks without signals."""

import tilec
from tilec import Dim, Out, Peer, Signal, bid, f32, grid, i32, load, meet, store


class N(Dim):
    """elements"""


@tilec.kernel
def few_signals(x: Peer[f32, 2, N], out: Out[f32, N], signals: Signal[2, 4], rank: i32):  #~ E0116
    grid(8)
    meet(signals, rank)
    for i in range(bid(0), N, 8):
        store(out, i, load(x[0], i) + load(x[1], i))
