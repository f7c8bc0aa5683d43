"""First half of a SwiGLU layer at prefill with small M: `matmul_silu_mul` with a tile of weights that fits the layer.

A tile has BN columns of gate and of up, and reads each weight once, so that a layer is best cut into as many tiles as there are
multiprocessors. Tokens are the left operand, of which tensor cores take 64 rows, because a right one can have any multiple of
eight columns.
"""

from typing import Literal

import tilec as tl

from .dims import E, I, K, M


@tl.kernel
def matmul_silu_mul_few(
    a: tl.In[E, M, K],
    b: tl.In[E, Literal[2], I, K],
    out: tl.Out[E, M, I],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    """`out = silu(a @ b[0].T) * (a @ b[1].T)` in f32, rounded once; a block has BN outputs of BM tokens."""
    tl.resident(b)
    tl.requires(K % 8 == 0 and I % 8 == 0)
    rows = tl.cdiv(M, BM)
    tl.grid(rows * tl.cdiv(I, BN))
    tl.requires(rows * tl.cdiv(I, BN) <= 2147483647)
    m, n = tl.bid(0) % rows, tl.bid(0) // rows
    acc = tl.zeros((BM, 2 * BN), tl.f32)
    for k in range(tl.cdiv(K, BK)):
        x = tl.load(a, (m, k), shape=(BM, BK), pad=0)
        y = tl.reshape(tl.load(b, (0, n, k), shape=(2, BN, BK), pad=0), (2 * BN, BK))
        acc = tl.mma(x, y.T, acc)
    both = tl.reshape(acc, (BM, 2, BN))
    is_gate = (tl.arange(2) == 0)[None, :, None]
    gate, up = tl.sum(tl.where(is_gate, both, 0.0), axis=1), tl.sum(tl.where(is_gate, 0.0, both), axis=1)
    tl.store(out, (m, n), tl.astype(gate * tl.sigmoid(gate, fast=True) * up, E), mask=True)
