"""Linear layer at prefill with small M: `out = a @ b.T` on tensor cores, with the weights as their left operand.

Tensor cores take 64 rows of a left operand and few columns of a right one: as columns, tokens fill a tile with few to spare,
and what a block has on its way from memory is weights. Tokens that fill tiles of 64 themselves are the left operand of a tile
whose weights do not, so that a layer can be cut into as many tiles as there are multiprocessors.
"""

import tilec as tl

from .dims import E, K, M, N


@tl.kernel
def matmul_few(
    a: tl.In[E, M, K],
    b: tl.In[E, N, K],
    out: tl.Out[E, M, N],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    """Accumulated in f32, rounded once; a block has BN outputs of BM tokens. Whichever operand is the left one, an output is
    the same sum."""
    TOKENS_LEFT = BM % 64 == 0 and BN % 64 != 0
    tl.resident(b)
    tl.requires(K % 8 == 0 and N % 8 == 0)
    rows = tl.cdiv(M, BM)
    tl.grid(rows * tl.cdiv(N, BN))
    tl.requires(rows * tl.cdiv(N, BN) <= 2147483647)
    m, n = tl.bid(0) % rows, tl.bid(0) // rows
    acc = tl.zeros((BM, BN) if TOKENS_LEFT else (BN, BM), tl.f32)
    for k in range(tl.cdiv(K, BK)):
        x = tl.load(a, (m, k), shape=(BM, BK), pad=0)
        y = tl.load(b, (n, k), shape=(BN, BK), pad=0)
        acc = tl.mma(x, y.T, acc) if TOKENS_LEFT else tl.mma(y, x.T, acc)
    tl.store(out, (m, n), tl.astype(acc if TOKENS_LEFT else acc.T, E), mask=True)
