"""Every lane of a scatter has an element of its own."""

import tilec
from tilec import Dim, InOut, arange, bid, f32, grid, scatter, zeros


class T(Dim):
    """number of rows"""


@tilec.kernel
def folded_lanes_ok(out: InOut[f32, T, 8]):
    grid(T)
    lane = arange(8)
    scatter(out, (bid(0) + lane * 0, 7 - lane), zeros((8,), f32))
