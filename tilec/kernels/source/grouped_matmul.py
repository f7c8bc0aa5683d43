"""Products of the rows of each group with the group's own matrix, such as those of a mixture of experts."""

from typing import Literal

from grouped_parts import LIMIT, TILE, E, K, N, S, T, X, has_rows, own_tile, store_rows

import tilec as tl


@tl.kernel
def grouped_matmul(
    x: tl.In[E, T, K],
    weights: tl.In[E, X, N, K],
    groups: tl.In[tl.i32, S],
    starts: tl.In[tl.i32, S],
    before: tl.In[tl.i32, Literal["X + 2"]],
    out: tl.Out[E, T, N],
    *,
    E: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    """`out[t] = x[t] @ weights[g].T` for a row t of group g, in f32, rounded once; 0 for a row of no group.

    A tile has up to TILE rows of one group, from its first row on: `groups`, `starts` and `before` are of `group_starts` and
    `group_blocks`. Where a tile has fewer, rows of the next group are multiplied too, and not stored. Tiles without rows
    multiply nothing. Groups are clamped to those that exist and X, whose rows are of none.
    """
    tl.requires(K % 8 == 0, N % 8 == 0, T <= LIMIT, S >= 2)
    tl.requires(X <= 65536, K <= 1048576)
    tl.values(starts, 0, T + 1, sorted=True, ends=True)
    columns = tl.cdiv(N, BN)
    tl.grid((S - 1) * columns)
    tl.requires((S - 1) * columns <= 2147483647)
    m, n, g, begin, end = own_tile(groups, starts, columns, X)
    acc = tl.zeros((TILE, BN), tl.f32)
    for k in range(tl.cdiv(K, BK) * has_rows(m, before, X)):
        a = tl.load(x, offset=(begin, k * BK), shape=(TILE, BK), pad=0)
        b = tl.reshape(tl.load(weights, offset=(g, n * BN, k * BK), shape=(1, BN, BK), pad=0), (BN, BK))
        acc = tl.mma(a, b.T, acc)
    store_rows(out, tl.where(g < X, acc, 0.0).astype(E), begin, end, n * BN, T)
