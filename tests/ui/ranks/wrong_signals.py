"""What `meet` does not take: other tensors, signals in another order, numbers that the host did not pass."""

import tilec
from tilec import Dim, Out, Peer, Signal, bid, f32, grid, i32, load, meet, store


class N(Dim):
    """elements"""


@tilec.kernel
def wrong_signals(x: Peer[f32, 2, N], out: Out[f32, N], signals: Signal[2, 8], other: Signal[2, 8], rank: i32):
    grid(8)
    meet(out, rank)  #~ E0217
    meet(signals, 0)  #~ E0217
    meet((signals[1], signals[0]), rank)  #~ E0217
    meet((signals[0], other[1]), rank)  #~ E0217
    meet(signals, rank // 2)  #~ E0217
    meet(signals, 1 - rank)  #~ E0217
    meet(signals, N)  #~ E0217
    for i in range(bid(0), N, 8):
        store(out, i, load(x[0], i))
