"""Values that a launch would have to read before the ranks have met."""

import tilec
from tilec import Dim, Out, Peer, Signal, bid, f32, grid, i32, load, meet, store, values


class N(Dim):
    """elements"""


@tilec.kernel
def values_of_peer(x: Peer[i32, 2, N], out: Out[f32, N], signals: Signal[2, 8], rank: i32):
    grid(8)
    values(x[0], 0, N)  #~ E0217
    meet(signals, rank)
    for i in range(bid(0), N, 8):
        store(out, i, load(x[0], i).astype(f32))
