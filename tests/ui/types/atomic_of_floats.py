"""PTX has no atomics on the bits of floats, and a compare-and-swap compares bits."""

import tilec
from tilec import Atomic, atomic_cas, bid, f32, grid


@tilec.kernel
def atomic_of_floats(best: Atomic[f32, 4]):
    grid(4)
    atomic_cas(best, 0.0, 1.0, at=bid(0))  #~ E0201
