"""A block reads back what it has written."""

import tilec
from tilec import Dim, Out, Scratch, bid, f32, full, grid, load, store


class T(Dim):
    """number of rows"""


@tilec.kernel
def scratch_unwritten_ok(part: Scratch[f32, T, 64], out: Out[f32, T, 64]):
    grid(T)
    row = bid(0)
    store(part, (row, 0), full((1, 64), 1.0, f32))
    v = load(part, (row, 0), shape=(1, 64))
    store(out, (row, 0), v)
