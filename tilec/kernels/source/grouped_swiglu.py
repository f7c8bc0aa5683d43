"""First half of a SwiGLU layer of each expert: gate and up projection in one product (Shazeer, GLU Variants, 2020)."""

from typing import Literal

from grouped_parts import LIMIT, ROWS, E, K, N, T, X

import tilec as tl


@tl.kernel
def grouped_swiglu(
    x: tl.In[E, T, K],
    weights: tl.In[E, X, Literal[2], N, K],
    groups: tl.In[tl.i32, Literal["(T + ROWS - 1) // ROWS"], Literal[2]],
    offsets: tl.In[tl.i32, Literal["X + 1"]],
    out: tl.Out[E, T, N],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    """`out[t] = silu(x[t] @ weights[g, 0].T) * (x[t] @ weights[g, 1].T)` for a row t of group g, in f32, rounded once; 0 for a
    row of no group. Blocks go through groups as in `grouped_matmul`; a tile has BN columns of gate and BN of up."""
    assert BM % ROWS == 0
    tl.requires(K % 8 == 0, N % 8 == 0, T <= LIMIT)
    tl.requires(X <= 65536, K <= 1048576)
    tl.grid(tl.cdiv(N, BN), tl.cdiv(T, BM))
    n, m = tl.bid(0), tl.bid(1)
    last = min(m * (BM // ROWS) + BM // ROWS, tl.cdiv(T, ROWS)) - 1
    first = min(max(tl.load(groups, (m * (BM // ROWS), 0)), 0), X - 1)
    count = max(min(max(tl.load(groups, (last, 1)), 0), X) - first, 0)
    row = (m * BM + tl.arange(BM))[:, None]
    steps = tl.cdiv(K, BK)
    acc = tl.zeros((BM, 2 * BN), tl.f32)
    kept = tl.zeros((BM, 2 * BN), tl.f32)
    for i in range(count * steps):
        g, k = first + i // steps, i % steps
        a = tl.load(x, (m, k), shape=(BM, BK), pad=0)
        b = tl.reshape(tl.load(weights, (g, 0, n, k), shape=(1, 2, BN, BK), pad=0), (2 * BN, BK))
        acc = tl.mma(a, b.T, acc)
        if k == steps - 1:
            kept = tl.where((row >= tl.load(offsets, g)) & (row < tl.load(offsets, g + 1)), acc, kept)
            acc = tl.zeros((BM, 2 * BN), tl.f32)
    both = tl.reshape(kept, (BM, 2, BN))
    is_gate = (tl.arange(2) == 0)[None, :, None]
    gate, up = tl.sum(tl.where(is_gate, both, 0.0), axis=1), tl.sum(tl.where(is_gate, 0.0, both), axis=1)
    tl.store(out, (m, n), (gate * tl.sigmoid(gate, fast=True) * up).astype(E), mask=True)
