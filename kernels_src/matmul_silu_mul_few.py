"""First half of a SwiGLU layer at prefill with small M: `matmul_silu_mul` with the weights as left operand (`matmul_few`)."""

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
    acc = tl.zeros((2 * BN, BM), tl.f32)
    for k in range(tl.cdiv(K, BK)):
        x = tl.load(a, (m, k), shape=(BM, BK), pad=0)
        y = tl.reshape(tl.load(b, (0, n, k), shape=(2, BN, BK), pad=0), (2 * BN, BK))
        acc = tl.mma(y, x.T, acc)
    both = tl.reshape(acc, (2, BN, BM))
    is_gate = (tl.arange(2) == 0)[:, None, None]
    gate, up = tl.sum(tl.where(is_gate, both, 0.0), axis=0), tl.sum(tl.where(is_gate, 0.0, both), axis=0)
    tl.store(out, (m, n), tl.astype((gate * tl.sigmoid(gate, fast=True) * up).T, E), mask=True)
