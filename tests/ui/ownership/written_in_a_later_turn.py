"""The write stands before the read, and half of what is read is written by later iterations."""

import tilec
from tilec import Dim, Out, Scratch, bid, f32, full, grid, load, store


class N(Dim):
    """rows"""


@tilec.kernel
def written_in_a_later_turn(y: Scratch[f32, N, 8], out: Out[f32, N, 8]):
    grid(N)
    b = bid(0)
    for i in range(8):
        store(y, (b, i), full((), 1.0, f32))
        store(out, (b, i), load(y, (b, 7 - i)))  #~ E0405
