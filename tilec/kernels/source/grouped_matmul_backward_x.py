"""Gradient of `grouped_matmul` with respect to its rows."""

from typing import Literal

from grouped_parts import LIMIT, ROWS, E, K, N, T, X

import tilec as tl


@tl.kernel
def grouped_matmul_backward_x(
    dout: tl.In[E, T, N],
    weights: tl.In[E, X, N, K],
    groups: tl.In[tl.i32, Literal["(T + ROWS - 1) // ROWS"], Literal[2]],
    offsets: tl.In[tl.i32, Literal["X + 1"]],
    dx: tl.Out[E, T, K],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    """`dx[t] = dout[t] @ weights[g]` for a row t of group g, in f32, rounded once; 0 for a row of no group."""
    assert BM % ROWS == 0
    tl.requires(K % 8 == 0, N % 8 == 0, T <= LIMIT)
    tl.requires(X <= 65536, N <= 1048576)
    tl.grid(tl.cdiv(K, BN), tl.cdiv(T, BM))
    n, m = tl.bid(0), tl.bid(1)
    last = min(m * (BM // ROWS) + BM // ROWS, tl.cdiv(T, ROWS)) - 1
    first = min(max(tl.load(groups, (m * (BM // ROWS), 0)), 0), X - 1)
    count = max(min(max(tl.load(groups, (last, 1)), 0), X) - first, 0)
    row = (m * BM + tl.arange(BM))[:, None]
    steps = tl.cdiv(N, BK)
    acc = tl.zeros((BM, BN), tl.f32)
    kept = tl.zeros((BM, BN), tl.f32)
    for i in range(count * steps):
        g, k = first + i // steps, i % steps
        a = tl.load(dout, (m, k), shape=(BM, BK), pad=0)
        b = tl.reshape(tl.load(weights, (g, k, n), shape=(1, BK, BN), pad=0), (BK, BN))
        acc = tl.mma(a, b, acc)
        if k == steps - 1:
            kept = tl.where((row >= tl.load(offsets, g)) & (row < tl.load(offsets, g + 1)), acc, kept)
            acc = tl.zeros((BM, BN), tl.f32)
    tl.store(dx, (m, n), kept.astype(E), mask=True)
