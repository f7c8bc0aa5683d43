"""The same for writes: element `arange(4) + d` of the block's own row, `d` not zero."""

import tilec
from tilec import Dim, In, InOut, arange, bid, f32, full, grid, scatter


class N(Dim):
    """rows"""


@tilec.kernel
def p2_carried_scatter(y: In[f32, N], out: InOut[f32, N, 4]):
    grid(N)
    b = bid(0)
    c = arange(4)
    for i in range(2):
        d = c - c.reshape((2, 2)).permute((1, 0)).reshape((4,))
        scatter(out, (b, arange(4) + d * 1000), full((4,), 1.0, f32))
        c = (c + 1) % 4
