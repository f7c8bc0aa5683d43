"""Two blocks write one element: the row is `b + d`, `d` not zero."""

import tilec
from tilec import (
    Dim,
    In,
    Out,
    arange,
    bid,
    f32,
    full,
    grid,
    maximum,
    minimum,
    num_blocks,
    requires,
    scatter,
)


class N(Dim):
    """rows"""


@tilec.kernel
def p3_carried_race(y: In[f32, N], out: Out[f32, N, 4]):
    grid(N)
    requires(N <= 1000000)
    b = bid(0)
    c = arange(4)
    for i in range(1):
        d = c - c.reshape((2, 2)).permute((1, 0)).reshape((4,))
        row = minimum(maximum(d + b, 0), num_blocks(0) - 1)
        scatter(out, (row, arange(4)), full((4,), 1.0, f32))
        c = (c + 1) % 4
