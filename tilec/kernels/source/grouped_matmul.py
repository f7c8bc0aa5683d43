"""Products of the rows of each group with the group's own matrix, such as those of a mixture of experts."""

from typing import Literal

from grouped_parts import LIMIT, ROWS, E, K, N, T, X

import tilec as tl


@tl.kernel
def grouped_matmul(
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
    """`out[t] = x[t] @ weights[g].T` for a row t of group g, in f32, rounded once; 0 for a row of no group.

    Group g has rows `offsets[g]` to `offsets[g + 1] - 1`; `groups` is of `group_tiles`. A block multiplies
    its rows by the matrix of each of its groups, and keeps the products of the group's own rows. So there is one product of a
    tile more for each group that begins within one. Groups are clamped to those that exist.
    """
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
    acc = tl.zeros((BM, BN), tl.f32)
    kept = tl.zeros((BM, BN), tl.f32)
    for i in range(count * steps):
        g, k = first + i // steps, i % steps
        a = tl.load(x, (m, k), shape=(BM, BK), pad=0)
        b = tl.reshape(tl.load(weights, (g, n, k), shape=(1, BN, BK), pad=0), (BN, BK))
        acc = tl.mma(a, b.T, acc)
        if k == steps - 1:
            kept = tl.where((row >= tl.load(offsets, g)) & (row < tl.load(offsets, g + 1)), acc, kept)
            acc = tl.zeros((BM, BN), tl.f32)
    tl.store(out, (m, n), kept.astype(E), mask=True)
