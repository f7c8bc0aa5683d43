"""A loop that may begin at the last i32 and have no iteration: what is copied ahead begins there too."""

import tilec
from tilec import Dim, In, Out, astype, bf16, bid, cdiv, f32, grid, i32, load, mma, resident, store, zeros


class M(Dim):
    """rows"""


class N(Dim):
    """columns"""


class T(Dim):
    """slices"""


@tilec.kernel
def late_beginning(a: In[bf16, T, M, 64], b: In[bf16, T, N, 64], out: Out[bf16, M, N], first: i32, last: i32):
    resident(b)
    grid(cdiv(M, 64), cdiv(N, 64))
    m, n = bid(0), bid(1)
    acc = zeros((64, 64), f32)
    for k in range(first, last):
        x = load(a, (k, m, 0), shape=(1, 64, 64), pad=0).reshape((64, 64))
        y = load(b, (k, n, 0), shape=(1, 64, 64), pad=0).reshape((64, 64))
        acc = mma(x, y.T, acc)
    store(out, (m, n), astype(acc, bf16), mask=True)
