"""`out = a @ b.T` of 8-bit floats with a scale for 128 elements of a row of `a` and for 128 by 128 elements of `b`."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class M(tl.Dim):
    """rows of activations"""


class N(tl.Dim):
    """outputs"""


class K(tl.Dim):
    """inputs"""


class NB(tl.Dim):
    """scales along the outputs"""


class KB(tl.Dim):
    """scales along the inputs"""


@tl.kernel
def f8_product(
    a: tl.In[tl.f8e4m3, M, K],
    b: tl.In[tl.f8e4m3, N, K],
    a_scale: tl.In[tl.f32, M, KB],
    b_scale: tl.In[tl.f32, NB, KB],
    out: tl.Out[E, M, N],
    *,
    E: tl.Const,
    BM: tl.Const,
):
    """A step is one block of scales: its product starts from zero, and is added in f32 once it is scaled."""
    tl.requires(K % 16 == 0, N % 8 == 0, KB * 128 >= K, NB * 128 >= N)
    tl.grid(tl.cdiv(M, BM), tl.cdiv(N, 128))
    m, n = tl.bid(0), tl.bid(1)
    total = tl.zeros((BM, 128), tl.f32)
    for k in range(tl.cdiv(K, 128)):
        x = tl.load(a, (m, k), shape=(BM, 128), pad=0)
        y = tl.load(b, (n, k), shape=(128, 128), pad=0)
        scale = tl.load(a_scale, (m, k), shape=(BM, 1), pad=0) * tl.load(b_scale, (n, k), shape=(1, 1))
        total = total + tl.mma(x, y.T, tl.zeros((BM, 128), tl.f32)) * scale
    tl.store(out, (m, n), total.astype(E), mask=True)
