"""One rank's part is read before ranks have met: the other may not have begun this launch."""

import tilec
from tilec import Dim, Out, Peer, Signal, bid, f32, grid, i32, load, meet, store


class N(Dim):
    """elements"""


@tilec.kernel
def early_read(x: Peer[f32, 2, N], out: Out[f32, N], signals: Signal[2, 8], rank: i32):
    grid(8)
    first = load(x[1], 0)  #~ E0407
    meet(signals, rank)
    for i in range(bid(0), N, 8):
        store(out, i, load(x[0], i) + load(x[1], i) + first)
