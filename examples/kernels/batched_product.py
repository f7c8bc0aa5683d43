"""`out[b] = x[b] @ y[b].T`"""

import tilec as tl


class E(tl.Element):
    """bf16 or f16"""


class B(tl.Dim):
    """products"""


class M(tl.Dim):
    """rows"""


class N(tl.Dim):
    """columns"""


class K(tl.Dim):
    """depth"""


@tl.kernel
def batched_product(
    x: tl.In[E, B, M, K],
    y: tl.In[E, B, N, K],
    out: tl.Out[E, B, M, N],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    """Summed in f32, rounded once; one block makes a tile of BM by BN of one product."""
    tl.requires(K % 8 == 0, N % 8 == 0)
    tl.grid(tl.cdiv(M, BM), tl.cdiv(N, BN), B)
    m, n, b = tl.bid(0), tl.bid(1), tl.bid(2)
    total = tl.zeros((BM, BN), tl.f32)
    for k in range(tl.cdiv(K, BK)):
        left = tl.reshape(tl.load(x, (b, m, k), shape=(1, BM, BK), pad=0), (BM, BK))
        right = tl.reshape(tl.load(y, (b, n, k), shape=(1, BN, BK), pad=0), (BN, BK))
        total = tl.mma(left, right.T, total)
    tl.store(out, (b, m, n), tl.reshape(total.astype(E), (1, BM, BN)), mask=True)
