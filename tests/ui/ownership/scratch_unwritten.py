"""A block reads scratch memory that it has not written."""

import tilec
from tilec import Dim, Out, Scratch, bid, f32, grid, load, store


class T(Dim):
    """number of rows"""


@tilec.kernel
def scratch_unwritten(part: Scratch[f32, T, 64], out: Out[f32, T, 64]):
    grid(T)
    row = bid(0)
    v = load(part, (row, 0), shape=(1, 64))  #~ E0405
    store(part, (row, 0), v + 1.0)
    store(out, (row, 0), v)
