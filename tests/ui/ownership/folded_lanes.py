"""Two lanes of a scatter write one element."""

import tilec
from tilec import Dim, InOut, arange, bid, f32, grid, scatter, zeros


class T(Dim):
    """number of rows"""


@tilec.kernel
def folded_lanes(out: InOut[f32, T, 8]):
    grid(T)
    lane = arange(8)
    scatter(out, (bid(0) + lane * 0, lane // 2), zeros((8,), f32))  #~ E0404
