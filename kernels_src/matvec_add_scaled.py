"""Linear layer at decode with the residual added and the next norm begun (Zhang and Sennrich, 2019)."""

from typing import Literal

import tilec as tl

from .dims import E, K, N


class P(tl.Dim):
    """groups of ROWS outputs"""


@tl.kernel
def matvec_add_scaled(
    x: tl.In[E, Literal[1], K],
    w: tl.In[E, N, K],
    residual: tl.InOut[E, Literal[1], N],
    weight: tl.In[E, N],
    scaled: tl.Out[E, Literal[1], N],
    squares: tl.Out[tl.f32, Literal[1], P],
    *,
    E: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
):
    """`residual += x @ w.T` as `matvec_add`, then `scaled = residual * weight` and the sum of squares of each group of the
    residual: what a norm is but for its scale, one number for the whole row, by which the next product scales its sums."""
    tl.grid(P)
    tl.requires(K % BLOCK == 0 and P * ROWS == N)
    tl.resident(w, weight)
    n = tl.bid(0)
    g = tl.load(weight, n, shape=ROWS).astype(tl.f32)
    old = tl.load(residual, (0, n), shape=(1, ROWS)).astype(tl.f32)
    acc = tl.zeros((1, ROWS, BLOCK), tl.f32)
    for k in range(K // BLOCK):
        a = tl.load(x, (0, k), shape=(1, BLOCK)).astype(tl.f32)
        b = tl.load(w, (n, k), shape=(ROWS, BLOCK)).astype(tl.f32)
        acc += a[:, None, :] * b[None, :, :]
    total = tl.astype(tl.sum(acc, axis=2) + old, E)
    tl.store(residual, (0, n), total)
    v = total.astype(tl.f32)
    tl.store(scaled, (0, n), tl.astype(v * g[None, :], E))
    tl.store(squares, (0, n), tl.sum(v * v, axis=1)[:, None])
