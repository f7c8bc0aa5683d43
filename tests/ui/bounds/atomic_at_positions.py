"""Positions of atomics are held to the same bounds as those of a scatter."""

import tilec
from tilec import Atomic, Dim, arange, atomic_add, bid, grid, i32


class N(Dim):
    """number of elements"""


@tilec.kernel
def atomic_at_positions(counts: Atomic[i32, N]):
    grid(N)
    i = bid(0)
    atomic_add(counts, 1, at=i + arange(2))  #~ E0303
