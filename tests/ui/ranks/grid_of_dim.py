"""Nobody knows whether as many blocks are resident together."""

import tilec
from tilec import Dim, Out, Peer, Signal, bid, f32, grid, i32, load, meet, store


class N(Dim):
    """elements"""


@tilec.kernel
def grid_of_dim(x: Peer[f32, 2, N], out: Out[f32, N], signals: Signal[2, 8], rank: i32):  #~ E0116
    grid(N)
    meet(signals, rank)
    store(out, bid(0), load(x[0], bid(0)) + load(x[1], bid(0)))
