"""Index tiles that a loop carries: one advances by a constant, one is permuted and reshaped; both stay inside."""

import tilec
from tilec import Dim, In, Out, arange, bid, f32, gather, grid, store, zeros


class N(Dim):
    """rows"""


@tilec.kernel
def carried_tile_ok(x: In[f32, N, 16], out: Out[f32, N, 4]):
    grid(N)
    b = bid(0)
    c = arange(4)
    e = arange(4)
    acc = zeros((4,), f32)
    for _ in range(4):
        acc = acc + gather(x, (b, c)) + gather(x, (b, e))
        c = c + 4
        e = (e.reshape((2, 2)).permute((1, 0)).reshape((4,)) + 1) % 4
    store(out, (b, 0), acc.reshape((1, 4)))
