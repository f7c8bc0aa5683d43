"""Products of the rows of small groups with the group's own matrix, such as those of a mixture of experts at decode."""

from typing import Literal

from grouped_parts import LIMIT, ROWS, E, K, N, T, X

import tilec as tl


@tl.kernel
def grouped_matmul_few(
    x: tl.In[E, T, K],
    weights: tl.In[E, X, N, K],
    groups: tl.In[tl.i32, Literal["(T + ROWS - 1) // ROWS"], Literal[2]],
    offsets: tl.In[tl.i32, Literal["X + 1"]],
    out: tl.Out[E, T, N],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    """As `grouped_matmul`, for small groups: BM rows are the columns of a product, whose rows are BN outputs."""
    assert BM % ROWS == 0
    tl.requires(K % 8 == 0, N % 8 == 0, T <= LIMIT)
    tl.requires(X <= 65536, K <= 1048576)
    tl.grid(tl.cdiv(N, BN), tl.cdiv(T, BM))
    n, m = tl.bid(0), tl.bid(1)
    last = min(m * (BM // ROWS) + BM // ROWS, tl.cdiv(T, ROWS)) - 1
    first = min(max(tl.load(groups, (m * (BM // ROWS), 0)), 0), X - 1)
    count = max(min(max(tl.load(groups, (last, 1)), 0), X) - first, 0)
    row = (m * BM + tl.arange(BM))[None, :]
    steps = tl.cdiv(K, BK)
    acc = tl.zeros((BN, BM), tl.f32)
    kept = tl.zeros((BN, BM), tl.f32)
    for i in range(count * steps):
        g, k = first + i // steps, i % steps
        a = tl.load(x, (m, k), shape=(BM, BK), pad=0)
        b = tl.reshape(tl.load(weights, (g, n, k), shape=(1, BN, BK), pad=0), (BN, BK))
        acc = tl.mma(b, a.T, acc)
        if k == steps - 1:
            kept = tl.where((row >= tl.load(offsets, g)) & (row < tl.load(offsets, g + 1)), acc, kept)
            acc = tl.zeros((BN, BM), tl.f32)
    tl.store(out, (m, n), kept.T.astype(E), mask=True)
