"""`out[b] = x[b] @ y[b].T`"""

import tilec
from tilec import Const, Dim, Element, In, Out, bid, cdiv, f32, grid, load, mma, requires, reshape, store, zeros


class E(Element):
    """bf16 or f16"""


class B(Dim):
    """products"""


class M(Dim):
    """rows"""


class N(Dim):
    """columns"""


class K(Dim):
    """depth"""


@tilec.kernel
def batched_product(
    x: In[E, B, M, K],
    y: In[E, B, N, K],
    out: Out[E, B, M, N],
    *,
    E: Const,
    BM: Const,
    BN: Const,
    BK: Const,
):
    """Summed in f32, rounded once; one block makes a tile of BM by BN of one product."""
    requires(K % 8 == 0, N % 8 == 0)
    grid(cdiv(M, BM), cdiv(N, BN), B)
    m, n, b = bid(0), bid(1), bid(2)
    total = zeros((BM, BN), f32)
    for k in range(cdiv(K, BK)):
        left = reshape(load(x, (b, m, k), shape=(1, BM, BK), pad=0), (BM, BK))
        right = reshape(load(y, (b, n, k), shape=(1, BN, BK), pad=0), (BN, BK))
        total = mma(left, right.T, total)
    store(out, (b, m, n), reshape(total.astype(E), (1, BM, BN)), mask=True)
