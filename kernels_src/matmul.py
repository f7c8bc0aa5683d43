"""Linear layer at prefill: `out = a @ b.T` on tensor cores."""

import tilec
from tilec import Const, Dim, Element, In, Out, astype, bid, cdiv, f32, grid, load, mma, requires, store, zeros


class E(Element):
    """bf16 or f16"""


class M(Dim):
    """rows of activations (tokens)"""


class N(Dim):
    """outputs"""


class K(Dim):
    """inputs"""


@tilec.kernel
def matmul(
    a: In[E, M, K],
    b: In[E, N, K],
    out: Out[E, M, N],
    *,
    E: Const,
    BM: Const,
    BN: Const,
    BK: Const,
    GROUP: Const,
):
    """Accumulated in f32. Blocks walk GROUP rows of tiles at a time, so that neighbours share tiles of `b` in the L2 cache."""
    requires(K % 8 == 0 and N % 8 == 0)
    rows, columns = cdiv(M, BM), cdiv(N, BN)
    grid(rows * columns)
    requires(rows * columns <= 2147483647)
    t = bid(0)
    first = t // (GROUP * columns) * GROUP
    height = min(rows - first, GROUP)
    m = first + t % (GROUP * columns) % height
    n = t % (GROUP * columns) // height
    acc = zeros((BM, BN), f32)
    for k in range(cdiv(K, BK)):
        x = load(a, (m, k), shape=(BM, BK), pad=0)
        y = load(b, (n, k), shape=(BN, BK), pad=0)
        acc = mma(x, y.T, acc)
    store(out, (m, n), astype(acc, E), mask=True)
