"""A product of matrices, both as they lie in memory."""

from linear_parts import E

import tilec as tl


class M(tl.Dim):
    """rows"""


class N(tl.Dim):
    """columns"""


class K(tl.Dim):
    """depth"""


class KA(tl.Dim):
    """elements of a row of `a`, of which those past the depth are 0"""


@tl.kernel
def product(
    a: tl.In[E, M, KA],
    b: tl.In[E, K, N],
    out: tl.Out[E, M, N],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
    GROUP: tl.Const,
):
    """`out = a @ b` in f32, rounded once.

    Blocks walk through GROUP rows of tiles at a time, whose columns the cache then has."""
    tl.requires(KA % 8 == 0, N % 8 == 0, K <= KA)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    tl.grid(rows * columns)
    tl.requires(rows * columns <= 2147483647)
    t = tl.bid(0)
    first = t // (GROUP * columns) * GROUP
    height = min(rows - first, GROUP)
    m = first + t % (GROUP * columns) % height
    n = t % (GROUP * columns) // height
    acc = tl.zeros((BM, BN), tl.f32)
    for k in range(tl.cdiv(K, BK)):
        acc = tl.mma(tl.load(a, (m, k), shape=(BM, BK), pad=0), tl.load(b, (k, n), shape=(BK, BN), pad=0), acc)
    tl.store(out, (m, n), acc.astype(E), mask=True)
