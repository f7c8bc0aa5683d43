"""`scaled_matvec` of the tokens of several sequences: the weights are read once for all rows."""

from typing import Literal

import tilec as tl

from .dims import B, E, K, N
from .eight_rows import each_once, rows_in_parts, weights_in_parts


@tl.kernel
def scaled_matvec_rows(
    x: tl.In[E, B, K],
    squares: tl.In[tl.f32, B, Literal["K // 16"]],
    w: tl.In[E, N, K],
    out: tl.Out[E, B, N],
    eps: tl.f32,
    *,
    E: tl.Const,
    B: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
    BLOCK: tl.Const,
):
    """`out = (x @ w.T) / sqrt(sum(squares) / K + eps)` for each row, in f32, rounded once; ROWS outputs per block. `x` has rows
    times the norm's weight, `squares` the sums of squares of each row's groups of 16.

    SPLIT warps share a sum: each has BLOCK columns of SPLIT * BLOCK.
    """
    tl.grid(N // ROWS)
    tl.requires(8 % B == 0 and K % (SPLIT * BLOCK) == 0 and N % ROWS == 0)
    tl.resident(w)
    n = tl.bid(0)
    total = tl.sum(tl.load(squares, (0, 0), shape=(B, K // 16)), axis=1)
    scale = tl.rsqrt(total * (1.0 / K) + eps, fast=True)
    acc = tl.zeros((SPLIT, ROWS, 8), tl.f32)
    for k in range(K // (SPLIT * BLOCK)):
        a = weights_in_parts(tl.load(w, (n, k), shape=(ROWS, SPLIT * BLOCK)), ROWS, SPLIT, BLOCK)
        b = rows_in_parts(tl.load(x, (0, k), shape=(B, SPLIT * BLOCK)), B, SPLIT, BLOCK)
        acc = tl.mma(a, b, acc)
    tl.store(out, (0, n), tl.astype((each_once(tl.sum(acc, axis=0), ROWS, B) * scale[None, :]).T, E))
