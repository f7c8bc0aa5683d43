"""int8 by int8 product, summed in i32, scaled by row and by column."""

import tilec as tl


class E(tl.Element):
    """bf16 or f16"""


class M(tl.Dim):
    """rows"""


class N(tl.Dim):
    """columns"""


class K(tl.Dim):
    """depth"""


@tl.kernel
def int8_gemm(
    a: tl.In[tl.i8, M, K],
    b: tl.In[tl.i8, N, K],
    row_scale: tl.In[tl.f32, M],
    col_scale: tl.In[tl.f32, N],
    out: tl.Out[E, M, N],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    """`out[m, n] = sum(a[m] * b[n]) * row_scale[m] * col_scale[n]`"""
    tl.grid(tl.cdiv(M, BM), tl.cdiv(N, BN))
    m, n = tl.bid(0), tl.bid(1)
    acc = tl.zeros((BM, BN), tl.i32)
    for k in range(tl.cdiv(K, BK)):
        x = tl.load(a, (m, k), shape=(BM, BK), pad=0)
        y = tl.load(b, (n, k), shape=(BN, BK), pad=0)
        acc = tl.mma(x, y.T, acc)
    rs = tl.load(row_scale, m, shape=BM, pad=0)
    cs = tl.load(col_scale, n, shape=BN, pad=0)
    tl.store(out, (m, n), (acc.astype(tl.f32) * rs[:, None] * cs[None, :]).astype(E), mask=True)
