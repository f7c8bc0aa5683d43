"""Blocks of a rank that does not take the branch never come."""

import tilec
from tilec import Dim, Out, Peer, Signal, bid, f32, grid, i32, load, meet, store


class N(Dim):
    """elements"""


@tilec.kernel
def meet_in_branch(x: Peer[f32, 2, N], out: Out[f32, N], signals: Signal[2, 8], rank: i32):
    grid(8)
    if rank == 0:
        meet(signals, rank)  #~ E0116
    for i in range(bid(0), N, 8):
        store(out, i, load(x[0], i) + load(x[1], i))
