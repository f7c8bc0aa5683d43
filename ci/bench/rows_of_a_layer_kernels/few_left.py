"""few_left"""
import tilec as tl

from .dims import E, K, M, N


@tl.kernel
def few_left(
    a: tl.In[E, M, K],
    b: tl.In[E, N, K],
    out: tl.Out[E, M, N],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    """x"""
    tl.resident(b)
    tl.requires(K % 8 == 0 and N % 8 == 0)
    rows = tl.cdiv(M, BM)
    tl.grid(rows * tl.cdiv(N, BN))
    tl.requires(rows * tl.cdiv(N, BN) <= 2147483647)
    m, n = tl.bid(0) % rows, tl.bid(0) // rows
    acc = tl.zeros((BM, BN), tl.f32)
    for k in range(tl.cdiv(K, BK)):
        x = tl.load(a, (m, k), shape=(BM, BK), pad=0)
        y = tl.load(b, (n, k), shape=(BN, BK), pad=0)
        acc = tl.mma(x, y.T, acc)
    tl.store(out, (m, n), tl.astype(acc, E), mask=True)
