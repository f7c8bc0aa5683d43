"""First half of a SwiGLU layer at prefill: gate and up projection in one product on tensor cores, combined where it is made
(Shazeer, GLU Variants, 2020)."""

from typing import Literal

import tilec as tl

from .dims import E, I, K, M


@tl.kernel
def matmul_silu_mul(
    a: tl.In[E, M, K],
    b: tl.In[E, Literal[2], I, K],
    out: tl.Out[E, M, I],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
    GROUP: tl.Const,
):
    """`out = silu(a @ b[0].T) * (a @ b[1].T)` in f32, rounded once. Blocks walk tiles as those of `matmul` do."""
    tl.requires(K % 8 == 0 and I % 8 == 0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(I, BN)
    tl.grid(rows * columns)
    tl.requires(rows * columns <= 2147483647)
    t = tl.bid(0)
    first = t // (GROUP * columns) * GROUP
    height = min(rows - first, GROUP)
    m = first + t % (GROUP * columns) % height
    n = t % (GROUP * columns) // height
    acc = tl.zeros((BM, 2 * BN), tl.f32)
    for k in range(tl.cdiv(K, BK)):
        x = tl.load(a, (m, k), shape=(BM, BK), pad=0)
        y = tl.reshape(tl.load(b, (0, n, k), shape=(2, BN, BK), pad=0), (2 * BN, BK))
        acc = tl.mma(x, y.T, acc)
    both = tl.reshape(acc, (BM, 2, BN))
    is_gate = (tl.arange(2) == 0)[None, :, None]
    gate, up = tl.sum(tl.where(is_gate, both, 0.0), axis=1), tl.sum(tl.where(is_gate, 0.0, both), axis=1)
    tl.store(out, (m, n), tl.astype(gate * tl.sigmoid(gate, fast=True) * up, E), mask=True)
