"""`out = (a @ b.T) * a_scale * b_scale` of 8-bit integers; the products are summed exactly."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class M(tl.Dim):
    """rows of activations"""


class N(tl.Dim):
    """outputs"""


class K(tl.Dim):
    """inputs"""


@tl.kernel
def int8_product(
    a: tl.In[tl.i8, M, K],
    b: tl.In[tl.i8, N, K],
    a_scale: tl.In[tl.f32, M],
    b_scale: tl.In[tl.f32, N],
    out: tl.Out[E, M, N],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    """Sums fit i32 while K is below 2 ** 17, because a product is at most 2 ** 14."""
    tl.requires(K % 16 == 0, K < 131072, N % 8 == 0)
    tl.grid(tl.cdiv(M, BM), tl.cdiv(N, BN))
    m, n = tl.bid(0), tl.bid(1)
    total = tl.zeros((BM, BN), tl.i32)
    for k in range(tl.cdiv(K, BK)):
        x = tl.load(a, (m, k), shape=(BM, BK), pad=0)
        y = tl.load(b, (n, k), shape=(BN, BK), pad=0)
        total = tl.mma(x, y.T, total)
    rows = tl.load(a_scale, m, shape=BM, pad=0)[:, None]
    columns = tl.load(b_scale, n, shape=BN, pad=0)[None, :]
    tl.store(out, (m, n), (total.astype(tl.f32) * rows * columns).astype(E), mask=True)
