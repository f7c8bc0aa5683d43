"""`out = (a @ b.T) * a_scale * b_scale` of 8-bit integers; the products are summed exactly."""

import tilec
from tilec import Const, Dim, Element, In, Out, bf16, bid, cdiv, f32, grid, i8, i32, load, mma, requires, store, zeros


class E(Element):
    """bf16, f16 or f32"""


class M(Dim):
    """rows of activations"""


class N(Dim):
    """outputs"""


class K(Dim):
    """inputs"""


@tilec.kernel
def int8_product(
    a: In[i8, M, K],
    b: In[i8, N, K],
    a_scale: In[f32, M],
    b_scale: In[f32, N],
    out: Out[E, M, N],
    *,
    E: Const,
    BM: Const,
    BN: Const,
    BK: Const,
):
    """A step adds at most BK * 2 ** 14, which f32 holds exactly; steps are added up in i32."""
    assert BK <= 1024
    requires(K % 16 == 0, N % 8 == 0)
    grid(cdiv(M, BM), cdiv(N, BN))
    m, n = bid(0), bid(1)
    total = zeros((BM, BN), i32)
    for k in range(cdiv(K, BK)):
        x = load(a, (m, k), shape=(BM, BK), pad=0).astype(bf16)
        y = load(b, (n, k), shape=(BN, BK), pad=0).astype(bf16)
        total = total + mma(x, y.T, zeros((BM, BN), f32)).astype(i32)
    rows = load(a_scale, m, shape=BM, pad=0)[:, None]
    columns = load(b_scale, n, shape=BN, pad=0)[None, :]
    store(out, (m, n), (total.astype(f32) * rows * columns).astype(E), mask=True)
