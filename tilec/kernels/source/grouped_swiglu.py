"""First half of a SwiGLU layer of each expert: gate and up projection in one product (Shazeer, GLU Variants, 2020)."""

from typing import Literal

from grouped_parts import LIMIT, TILE, E, K, N, S, T, X, has_rows, own_tile, store_rows

import tilec as tl


@tl.kernel
def grouped_swiglu(
    x: tl.In[E, T, K],
    weights: tl.In[E, X, Literal[2], N, K],
    groups: tl.In[tl.i32, S],
    starts: tl.In[tl.i32, S],
    before: tl.In[tl.i32, Literal["X + 2"]],
    out: tl.Out[E, T, N],
    *,
    E: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    """`out[t] = silu(x[t] @ weights[g, 0].T) * (x[t] @ weights[g, 1].T)` for a row t of group g, in f32, rounded once; 0 for a
    row of no group. Tiles are those of `grouped_matmul`, with BN columns of gate and BN of up."""
    tl.requires(K % 8 == 0, N % 8 == 0, T <= LIMIT, S >= 2)
    tl.requires(X <= 65536, K <= 1048576)
    tl.values(starts, 0, T + 1, sorted=True, ends=True)
    columns = tl.cdiv(N, BN)
    tl.grid((S - 1) * columns)
    tl.requires((S - 1) * columns <= 2147483647)
    m, n, g, begin, end = own_tile(groups, starts, columns, X)
    acc = tl.zeros((TILE, 2 * BN), tl.f32)
    for k in range(tl.cdiv(K, BK) * has_rows(m, before, X)):
        a = tl.load(x, offset=(begin, k * BK), shape=(TILE, BK), pad=0)
        b = tl.reshape(tl.load(weights, offset=(g, 0, n * BN, k * BK), shape=(1, 2, BN, BK), pad=0), (2 * BN, BK))
        acc = tl.mma(a, b.T, acc)
    gate, up = tl.split(tl.permute(tl.reshape(acc, (TILE, 2, BN)), (0, 2, 1)))
    value = gate * tl.sigmoid(gate, fast=True) * up
    store_rows(out, tl.where(g < X, value, 0.0).astype(E), begin, end, n * BN, T)
