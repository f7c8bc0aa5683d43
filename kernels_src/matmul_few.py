"""Linear layer at prefill with small M: `out = a @ b.T` on tensor cores, with the weights as their left operand.

Tensor cores take 64 rows of a left operand and few columns of a right one: as columns, tokens fill a tile with few to spare,
and what a block has on its way from memory is weights.
"""

import tilec
from tilec import Const, Dim, Element, In, Out, astype, bid, cdiv, f32, grid, load, mma, requires, resident, store, zeros


class E(Element):
    """bf16 or f16"""


class M(Dim):
    """rows of activations (tokens)"""


class N(Dim):
    """outputs"""


class K(Dim):
    """inputs"""


@tilec.kernel
def matmul_few(
    a: In[E, M, K],
    b: In[E, N, K],
    out: Out[E, M, N],
    *,
    E: Const,
    BM: Const,
    BN: Const,
    BK: Const,
):
    """Accumulated in f32, rounded once; a block has BN outputs of BM tokens."""
    resident(b)
    requires(K % 8 == 0 and N % 8 == 0)
    rows = cdiv(M, BM)
    grid(rows * cdiv(N, BN))
    requires(rows * cdiv(N, BN) <= 2147483647)
    m, n = bid(0) % rows, bid(0) // rows
    acc = zeros((BN, BM), f32)
    for k in range(cdiv(K, BK)):
        x = load(a, (m, k), shape=(BM, BK), pad=0)
        y = load(b, (n, k), shape=(BN, BK), pad=0)
        acc = mma(y, x.T, acc)
    store(out, (m, n), astype(acc.T, E), mask=True)
