"""Linear layer at decode after a norm that `matvec_add_scaled` has begun (Zhang and Sennrich, 2019)."""

from typing import Literal

import tilec
from tilec import Const, Dim, Element, In, Out, astype, bid, f32, grid, load, requires, resident, rsqrt, store, sum, zeros


class E(Element):
    """bf16 or f16"""


class N(Dim):
    """outputs"""


class K(Dim):
    """inputs"""


@tilec.kernel
def scaled_matvec(
    x: In[E, Literal[1], K],
    squares: In[f32, Literal[1], Literal["K // 4"]],
    w: In[E, N, K],
    out: Out[E, Literal[1], N],
    eps: f32,
    *,
    E: Const,
    K: Const,
    ROWS: Const,
    BLOCK: Const,
):
    """`out = (x @ w.T) / sqrt(sum(squares) / K + eps)`, in f32, rounded once; ROWS outputs per block, BLOCK columns at a time.
    `x` is a row times the norm's weight, `squares` the sums of squares of the row's groups of four."""
    grid(N // ROWS)
    requires(K % BLOCK == 0 and N % ROWS == 0)
    resident(w)
    n = bid(0)
    total = sum(load(squares, (0, 0), shape=(1, K // 4)), axis=1)
    scale = rsqrt(total * (1.0 / K) + eps)
    acc = zeros((ROWS, BLOCK), f32)
    for k in range(K // BLOCK):
        a = load(x, (0, k), shape=(1, BLOCK)).astype(f32)
        acc += a * load(w, (n, k), shape=(ROWS, BLOCK)).astype(f32)
    store(out, (0, n), astype((sum(acc, axis=1) * scale)[None, :], E))
