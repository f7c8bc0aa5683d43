"""`matvec_add_scaled` of the tokens of several sequences: the weights are read once for all rows."""

from eight_rows import each_once, rows_in_parts, weights_in_parts

import tilec
from tilec import (
    Const,
    Dim,
    Element,
    In,
    InOut,
    Out,
    astype,
    bid,
    f32,
    grid,
    load,
    mma,
    requires,
    resident,
    store,
    sum,
    zeros,
)


class E(Element):
    """bf16 or f16"""


class B(Dim):
    """rows, one of each sequence: 2, 4 or 8"""


class N(Dim):
    """outputs"""


class P(Dim):
    """groups of ROWS outputs"""


class K(Dim):
    """inputs"""


@tilec.kernel
def matvec_add_scaled_rows(
    x: In[E, B, K],
    w: In[E, N, K],
    residual: InOut[E, B, N],
    weight: In[E, N],
    scaled: Out[E, B, N],
    squares: Out[f32, B, P],
    *,
    E: Const,
    B: Const,
    K: Const,
    ROWS: Const,
    SPLIT: Const,
    BLOCK: Const,
):
    """`residual += x @ w.T` for each row, then `scaled = residual * weight` and the sum of squares of each ROWS elements of the
    residual. SPLIT warps share a sum, as in `scaled_matvec_rows`."""
    grid(P)
    requires(8 % B == 0 and K % (SPLIT * BLOCK) == 0 and P * ROWS == N)
    resident(w, weight)
    n = bid(0)
    g = load(weight, n, shape=ROWS).astype(f32)
    old = load(residual, (0, n), shape=(B, ROWS)).astype(f32)
    acc = zeros((SPLIT, ROWS, 8), f32)
    for k in range(K // (SPLIT * BLOCK)):
        a = weights_in_parts(load(w, (n, k), shape=(ROWS, SPLIT * BLOCK)), ROWS, SPLIT, BLOCK)
        b = rows_in_parts(load(x, (0, k), shape=(B, SPLIT * BLOCK)), B, SPLIT, BLOCK)
        acc = mma(a, b, acc)
    total = astype(each_once(sum(acc, axis=0), ROWS, B).T + old, E)
    store(residual, (0, n), total)
    v = total.astype(f32)
    store(scaled, (0, n), astype(v * g[None, :], E))
    store(squares, (0, n), sum(v * v, axis=1)[:, None])
