"""split_left"""
import tilec as tl

from .dims import E, K, M, N


class S(tl.Dim):
    """parts of the depth"""


@tl.kernel
def split_left(
    a: tl.In[E, M, K],
    b: tl.In[E, N, K],
    parts: tl.Out[tl.f32, S, M, N],
    *,
    E: tl.Const,
    S: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    """x"""
    tl.resident(b)
    tl.requires(K % 8 == 0 and N % 8 == 0)
    rows, steps = tl.cdiv(M, BM), tl.cdiv(K, BK)
    tl.grid(rows * tl.cdiv(N, BN), S)
    tl.requires(rows * tl.cdiv(N, BN) <= 2147483647)
    m, n, part = tl.bid(0) % rows, tl.bid(0) // rows, tl.bid(1)
    run = tl.cdiv(steps, S)
    acc = tl.zeros((BM, BN), tl.f32)
    for k in range(part * run, min(part * run + run, steps)):
        x = tl.load(a, (m, k), shape=(BM, BK), pad=0)
        y = tl.load(b, (n, k), shape=(BN, BK), pad=0)
        acc = tl.mma(x, y.T, acc)
    tl.store(parts, (part, m, n), acc[None, :, :], mask=True)
