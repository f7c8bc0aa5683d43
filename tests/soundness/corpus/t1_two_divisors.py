"""Two stores split a persistent loop by different divisors: `(t // K, t % K)` was compared with `(t // M, t % M)`, so
executions in different iterations were taken to share what they read."""

from typing import Literal

import tilec
from tilec import Dim, In, InOut, Out, bid, grid, i32, load, num_blocks, requires, store, unsafe


class M(Dim):
    """rows"""


class K(Dim):
    """columns"""


@tilec.kernel
def t1_two_divisors(dummy: In[i32, M], flags: InOut[i32, Literal["M * K"]], out: Out[i32, K, K], blocks: i32):
    requires(blocks == 1, M <= 1000, K <= 1000, M <= K)
    grid(blocks)
    for t in range(bid(0), M * K, num_blocks(0)):
        v = load(flags, t)
        if v > 0:
            store(out, (t // K, t % K), 1)
        else:
            store(out, (t // M, t % M), 1)
    with unsafe("the rest is written elsewhere"):
        store(out, (0, 0), 1)
