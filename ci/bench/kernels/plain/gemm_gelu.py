"""`gelu(a @ b.T + bias)`, with the exact GELU."""

import math

import tilec as tl


class E(tl.Element):
    """bf16 or f16"""


class M(tl.Dim):
    """rows"""


class N(tl.Dim):
    """outputs"""


class K(tl.Dim):
    """inputs"""


@tl.function
def gelu(x: tl.Tile) -> tl.Tile:
    return 0.5 * x * (1 + tl.erf(x * math.sqrt(0.5)))


@tl.kernel
def gemm_gelu(
    a: tl.In[E, M, K],
    b: tl.In[E, N, K],
    bias: tl.In[E, N],
    out: tl.Out[E, M, N],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    tl.grid(tl.cdiv(M, BM), tl.cdiv(N, BN))
    m, n = tl.bid(0), tl.bid(1)
    acc = tl.zeros((BM, BN), tl.f32)
    for k in range(tl.cdiv(K, BK)):
        x = tl.load(a, (m, k), shape=(BM, BK), pad=0)
        y = tl.load(b, (n, k), shape=(BN, BK), pad=0)
        acc = tl.mma(x, y.T, acc)
    acc += tl.load(bias, n, shape=BN, pad=0).astype(tl.f32)
    tl.store(out, (m, n), gelu(acc).astype(E), mask=True)
