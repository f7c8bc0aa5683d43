"""`matvec_add_scaled` of the tokens of several sequences: the weights are read once for all rows."""

import tilec as tl

from .dims import B, E, K, N
from .eight_rows import each_once, rows_in_parts, weights_in_parts


class P(tl.Dim):
    """groups of ROWS outputs"""


@tl.kernel
def matvec_add_scaled_rows(
    x: tl.In[E, B, K],
    w: tl.In[E, N, K],
    residual: tl.InOut[E, B, N],
    weight: tl.In[E, N],
    scaled: tl.Out[E, B, N],
    squares: tl.Out[tl.f32, B, P],
    *,
    E: tl.Const,
    B: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
    BLOCK: tl.Const,
):
    """`residual += x @ w.T` for each row, then `scaled = residual * weight` and the sum of squares of each ROWS elements of the
    residual. SPLIT warps share a sum, as in `scaled_matvec_rows`."""
    tl.grid(P)
    tl.requires(8 % B == 0 and K % (SPLIT * BLOCK) == 0 and P * ROWS == N)
    tl.resident(w, weight)
    n = tl.bid(0)
    g = tl.load(weight, n, shape=ROWS).astype(tl.f32)
    old = tl.load(residual, (0, n), shape=(B, ROWS)).astype(tl.f32)
    acc = tl.zeros((SPLIT, ROWS, 8), tl.f32)
    for k in range(K // (SPLIT * BLOCK)):
        a = weights_in_parts(tl.load(w, (n, k), shape=(ROWS, SPLIT * BLOCK)), ROWS, SPLIT, BLOCK)
        b = rows_in_parts(tl.load(x, (0, k), shape=(B, SPLIT * BLOCK)), B, SPLIT, BLOCK)
        acc = tl.mma(a, b, acc)
    total = tl.astype(each_once(tl.sum(acc, axis=0), ROWS, B).T + old, E)
    tl.store(residual, (0, n), total)
    v = total.astype(tl.f32)
    tl.store(scaled, (0, n), tl.astype(v * g[None, :], E))
    tl.store(squares, (0, n), tl.sum(v * v, axis=1)[:, None])
