"""Each iteration sums a window that it has written itself; windows of neighboring iterations overlap."""

import tilec
from tilec import Dim, In, InOut, Out, bid, f32, grid, i32, load, requires, store, zeros


class N(Dim):
    """rows"""


class S(Dim):
    """row length"""


@tilec.kernel
def moving_window(x: In[f32, N, 1024], s: InOut[f32, N, S], out: Out[f32, N, 1024], turns: i32):
    grid(N)
    requires(turns >= 0, turns <= 100, 128 * turns + 1024 <= S)
    b = bid(0)
    v = load(x, (b, 0), shape=(1, 1024))
    acc = zeros((1, 1024), f32)
    for i in range(turns):
        store(s, v, offset=(b, i * 128))
        acc = acc + load(s, offset=(b, i * 128), shape=(1, 1024))
    store(out, (b, 0), acc)
