"""An index tile that a loop carries, minus itself turned: the prover takes all its elements for one unknown."""

import tilec
from tilec import Dim, In, Out, arange, bid, f32, gather, grid, store, zeros


class N(Dim):
    """rows"""


@tilec.kernel
def p1_carried_tile(x: In[f32, N, 1], out: Out[f32, N, 4]):
    grid(N)
    b = bid(0)
    c = arange(4)
    acc = zeros((4,), f32)
    for i in range(2):
        d = c - c.reshape((2, 2)).permute((1, 0)).reshape((4,))
        acc = acc + gather(x, (b, d))
        c = (c + 1) % 4
    store(out, (b, 0), acc.reshape((1, 4)))
