"""A branch that no block takes may stand anywhere."""

import tilec
from tilec import Dim, Out, Peer, Signal, bid, f32, grid, i32, load, meet, store


class N(Dim):
    """elements"""


@tilec.kernel
def never_early_ok(x: Peer[f32, 2, N], out: Out[f32, N], signals: Signal[2, 8], rank: i32):
    grid(8)
    first = load(x[0], 0) if bid(0) > 8 else 0.0
    meet(signals, rank)
    for i in range(bid(0), N, 8):
        store(out, i, load(x[1], i) + first)
