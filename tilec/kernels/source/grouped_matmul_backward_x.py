"""Gradient of `grouped_matmul` with respect to its rows."""

from typing import Literal

from grouped_parts import LIMIT, TILE, E, K, N, S, T, X, has_rows, own_tile, store_rows

import tilec as tl


@tl.kernel
def grouped_matmul_backward_x(
    dout: tl.In[E, T, N],
    weights: tl.In[E, X, N, K],
    groups: tl.In[tl.i32, S],
    starts: tl.In[tl.i32, S],
    before: tl.In[tl.i32, Literal["X + 2"]],
    dx: tl.Out[E, T, K],
    *,
    E: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    """`dx[t] = dout[t] @ weights[g]` for a row t of group g, in f32, rounded once; 0 for a row of no group. Tiles are those of
    `grouped_matmul`."""
    tl.requires(K % 8 == 0, N % 8 == 0, T <= LIMIT, S >= 2)
    tl.requires(X <= 65536, N <= 1048576)
    tl.values(starts, 0, T + 1, sorted=True, ends=True)
    columns = tl.cdiv(K, BN)
    tl.grid((S - 1) * columns)
    tl.requires((S - 1) * columns <= 2147483647)
    m, n, g, begin, end = own_tile(groups, starts, columns, X)
    acc = tl.zeros((TILE, BN), tl.f32)
    for k in range(tl.cdiv(N, BK) * has_rows(m, before, X)):
        a = tl.load(dout, offset=(begin, k * BK), shape=(TILE, BK), pad=0)
        b = tl.reshape(tl.load(weights, offset=(g, k * BK, n * BN), shape=(1, BK, BN), pad=0), (BK, BN))
        acc = tl.mma(a, b, acc)
    store_rows(dx, tl.where(g < X, acc, 0.0).astype(E), begin, end, n * BN, T)
