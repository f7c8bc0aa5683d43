"""Three parts, and two ranks that meet."""

import tilec
from tilec import Dim, Out, Peer, Signal, bid, f32, grid, i32, load, meet, store


class N(Dim):
    """elements"""


@tilec.kernel
def other_ranks(x: Peer[f32, 3, N], out: Out[f32, N], signals: Signal[2, 8], rank: i32):  #~ E0116
    grid(8)
    meet(signals, rank)
    for i in range(bid(0), N, 8):
        store(out, i, load(x[0], i) + load(x[2], i))
