"""A padded staged load with an i64 row offset past 2^32: all of it is out of bounds, so it must read as zeros."""

import tilec
from tilec import Dim, In, Out, bf16, bid, f32, grid, i64, load, mma, requires, store, zeros


class M(Dim):
    """rows"""


class KB(Dim):
    """columns of x"""


@tilec.kernel
def far_offset(x: In[bf16, M, KB], w: In[bf16, KB, 64], out: Out[f32, 2, 64, 64]):
    grid(2)
    requires(KB % 64 == 0)
    b = bid(0)
    acc = zeros((64, 64), f32)
    row = i64(b) * 4294967296
    for k in range(KB // 64):
        left = load(x, offset=(row, k * 64), shape=(64, 64), pad=0)
        right = load(w, (k, 0), shape=(64, 64))
        acc = mma(left, right, acc)
    store(out, (b, 0, 0), acc.reshape((1, 64, 64)))
