"""Every rank would write the same part."""

import tilec
from tilec import Dim, Out, Peer, Signal, bid, f32, grid, i32, load, meet, store


class N(Dim):
    """elements"""


@tilec.kernel
def write_all(x: Peer[f32, 2, N], out: Out[f32, N], signals: Signal[2, 8], rank: i32):
    grid(8)
    meet(signals, rank)
    for i in range(bid(0), N, 8):
        store(out, i, load(x[0], i))
        for part in x:
            store(part, i, 0.0)  #~ E0207
