"""Nobody but the meet knows what the signals mean."""

import tilec
from tilec import Dim, Out, Peer, Signal, bid, f32, grid, i32, load, meet, store


class N(Dim):
    """elements"""


@tilec.kernel
def read_signals(x: Peer[f32, 2, N], out: Out[f32, N], signals: Signal[2, 8], rank: i32):
    grid(8)
    meet(signals, rank)
    late = load(signals[0], (0, 0, 0))  #~ E0207
    for i in range(bid(0), N, 8):
        store(out, i, load(x[0], i))
