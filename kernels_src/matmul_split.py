"""Linear layer at prefill with small M whose depth several blocks share: parts of `a @ b.T`, each over a run of the depth.

For products with fewer tiles than multiprocessors: the blocks of one tile each read a part of its weights. `merge_splits`, or
the kernel after the product, adds the parts in their order, so that the same input gives the same bits. Weights are the left
operand, as in `matmul_few`.
"""

import tilec
from tilec import Const, Dim, Element, In, Out, bid, cdiv, f32, grid, load, mma, requires, resident, store, zeros


class E(Element):
    """bf16 or f16"""


class M(Dim):
    """rows of activations (tokens)"""


class N(Dim):
    """outputs"""


class K(Dim):
    """inputs"""


class S(Dim):
    """parts of the depth"""


@tilec.kernel
def matmul_split(
    a: In[E, M, K],
    b: In[E, N, K],
    parts: Out[f32, S, M, N],
    *,
    E: Const,
    S: Const,
    BM: Const,
    BN: Const,
    BK: Const,
):
    """`parts[s]` is the product over the s-th run of steps of BK; the last runs may be shorter, or have none and be zero."""
    resident(b)
    requires(K % 8 == 0 and N % 8 == 0)
    rows, steps = cdiv(M, BM), cdiv(K, BK)
    grid(rows * cdiv(N, BN), S)
    requires(rows * cdiv(N, BN) <= 2147483647)
    m, n, part = bid(0) % rows, bid(0) // rows, bid(1)
    run = cdiv(steps, S)
    acc = zeros((BN, BM), f32)
    for k in range(part * run, min(part * run + run, steps)):
        x = load(a, (m, k), shape=(BM, BK), pad=0)
        y = load(b, (n, k), shape=(BN, BK), pad=0)
        acc = mma(y, x.T, acc)
    store(parts, (part, m, n), acc.T[None, :, :], mask=True)
