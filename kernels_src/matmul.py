"""Linear layer at prefill: `out = a @ b.T` on tensor cores."""

import tilec as tl

from .dims import E, K, M, N


@tl.kernel
def matmul(
    a: tl.In[E, M, K],
    b: tl.In[E, N, K],
    out: tl.Out[E, M, N],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
    GROUP: tl.Const,
):
    """Accumulated in f32. Blocks walk GROUP rows of tiles at a time, so that neighbours share tiles of `b` in the L2 cache."""
    tl.requires(K % 8 == 0 and N % 8 == 0)
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
        x = tl.load(a, (m, k), shape=(BM, BK), pad=0)
        y = tl.load(b, (n, k), shape=(BN, BK), pad=0)
        acc = tl.mma(x, y.T, acc)
    tl.store(out, (m, n), tl.astype(acc, E), mask=True)
