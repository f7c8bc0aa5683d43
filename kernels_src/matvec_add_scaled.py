"""Linear layer at decode with the residual added and the next norm begun (Zhang and Sennrich, 2019)."""

from typing import Literal

import tilec
from tilec import Const, Dim, Element, In, InOut, Out, astype, bid, f32, grid, load, requires, resident, store, sum, zeros


class E(Element):
    """bf16 or f16"""


class N(Dim):
    """outputs"""


class P(Dim):
    """groups of ROWS outputs"""


class K(Dim):
    """inputs"""


@tilec.kernel
def matvec_add_scaled(
    x: In[E, Literal[1], K],
    w: In[E, N, K],
    residual: InOut[E, Literal[1], N],
    weight: In[E, N],
    scaled: Out[E, Literal[1], N],
    squares: Out[f32, Literal[1], P],
    *,
    E: Const,
    K: Const,
    ROWS: Const,
    BLOCK: Const,
):
    """`residual += x @ w.T` as `matvec_add`, then `scaled = residual * weight` and the sum of squares of each group of the
    residual: what a norm is but for its scale, one number for the whole row, by which the next product scales its sums."""
    grid(P)
    requires(K % BLOCK == 0 and P * ROWS == N)
    resident(w, weight)
    n = bid(0)
    g = load(weight, n, shape=ROWS).astype(f32)
    old = load(residual, (0, n), shape=(1, ROWS)).astype(f32)
    acc = zeros((1, ROWS, BLOCK), f32)
    for k in range(K // BLOCK):
        a = load(x, (0, k), shape=(1, BLOCK)).astype(f32)
        b = load(w, (n, k), shape=(ROWS, BLOCK)).astype(f32)
        acc += a[:, None, :] * b[None, :, :]
    total = astype(sum(acc, axis=2) + old, E)
    store(residual, (0, n), total)
    v = total.astype(f32)
    store(scaled, (0, n), astype(v * g[None, :], E))
    store(squares, (0, n), sum(v * v, axis=1)[:, None])
