"""A step so large that a few steps from the beginning leave i32: what is copied ahead is of no iteration then."""

import tilec
from tilec import Dim, In, Out, astype, bf16, bid, cdiv, f32, grid, i32, load, mma, requires, resident, store, zeros


class M(Dim):
    """rows"""


class N(Dim):
    """outputs"""


class K(Dim):
    """inputs"""


@tilec.kernel
def w1_step(a: In[bf16, M, K], b: In[bf16, N, K], out: Out[bf16, M, N], s0: i32):
    requires(K % 8 == 0 and N % 8 == 0 and K <= 100000)
    requires(s0 >= 1, s0 <= 1073741824)
    resident(b)
    grid(cdiv(M, 64), cdiv(N, 64))
    m, n = bid(0), bid(1)
    acc = zeros((64, 64), f32)
    for k in range(0, cdiv(K, 64), s0):
        x = load(a, (m, k), shape=(64, 64), pad=0)
        y = load(b, (n, k), shape=(64, 64), pad=0)
        acc = mma(x, y.T, acc)
    store(out, (m, n), astype(acc, bf16), mask=True)
