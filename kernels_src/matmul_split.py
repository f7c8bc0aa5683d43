"""Linear layer at prefill with small M whose depth several blocks share: parts of `a @ b.T`, each over a run of the depth.

For products with fewer tiles than multiprocessors: the blocks of one tile each read a part of its weights. The kernel after the
product, such as `add_rms_norm_splits`, adds the parts in their order, so that the same input gives the same bits. Weights are
the left operand, as in `matmul_few`.
"""

import tilec as tl

from .dims import E, K, M, N


class S(tl.Dim):
    """parts of the depth"""


@tl.kernel
def matmul_split(
    a: tl.In[E, M, K],
    b: tl.In[E, N, K],
    parts: tl.Out[tl.f32, S, M, N],
    *,
    E: tl.Const,
    S: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    """`parts[s]` is the product over the s-th run of steps of BK; the last runs may be shorter, or have none and be zero."""
    tl.resident(b)
    tl.requires(K % 8 == 0 and N % 8 == 0)
    rows, steps = tl.cdiv(M, BM), tl.cdiv(K, BK)
    tl.grid(rows * tl.cdiv(N, BN), S)
    tl.requires(rows * tl.cdiv(N, BN) <= 2147483647)
    m, n, part = tl.bid(0) % rows, tl.bid(0) // rows, tl.bid(1)
    run = tl.cdiv(steps, S)
    acc = tl.zeros((BN, BM), tl.f32)
    for k in range(part * run, min(part * run + run, steps)):
        x = tl.load(a, (m, k), shape=(BM, BK), pad=0)
        y = tl.load(b, (n, k), shape=(BN, BK), pad=0)
        acc = tl.mma(y, x.T, acc)
    tl.store(parts, (part, m, n), acc.T[None, :, :], mask=True)
