"""Linear layer at decode after a norm that `matvec_add_scaled` has begun (Zhang and Sennrich, 2019)."""

from typing import Literal

import tilec as tl

from .dims import E, K, N


@tl.kernel
def scaled_matvec(
    x: tl.In[E, Literal[1], K],
    squares: tl.In[tl.f32, Literal[1], Literal["K // 4"]],
    w: tl.In[E, N, K],
    out: tl.Out[E, Literal[1], N],
    eps: tl.f32,
    *,
    E: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
):
    """`out = (x @ w.T) / sqrt(sum(squares) / K + eps)`, in f32, rounded once; ROWS outputs per block, BLOCK columns at a time.
    `x` is a row times the norm's weight, `squares` the sums of squares of the row's groups of four."""
    tl.grid(N // ROWS)
    tl.requires(K % BLOCK == 0 and N % ROWS == 0)
    tl.resident(w)
    n = tl.bid(0)
    total = tl.sum(tl.load(squares, (0, 0), shape=(1, K // 4)), axis=1)
    scale = tl.rsqrt(total * (1.0 / K) + eps, fast=True)
    acc = tl.zeros((ROWS, BLOCK), tl.f32)
    for k in range(K // BLOCK):
        a = tl.load(x, (0, k), shape=(1, BLOCK)).astype(tl.f32)
        acc += a * tl.load(w, (n, k), shape=(ROWS, BLOCK)).astype(tl.f32)
    tl.store(out, (0, n), tl.astype((tl.sum(acc, axis=1) * scale)[None, :], E))
