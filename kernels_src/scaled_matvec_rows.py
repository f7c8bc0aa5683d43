"""`scaled_matvec` of the tokens of several sequences: the weights are read once for all rows."""

from typing import Literal

from eight_rows import each_once, rows_in_parts, weights_in_parts

import tilec
from tilec import (
    Const,
    Dim,
    Element,
    In,
    Out,
    astype,
    bid,
    f32,
    grid,
    load,
    mma,
    requires,
    resident,
    rsqrt,
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


class K(Dim):
    """inputs"""


@tilec.kernel
def scaled_matvec_rows(
    x: In[E, B, K],
    squares: In[f32, B, Literal["K // 16"]],
    w: In[E, N, K],
    out: Out[E, B, N],
    eps: f32,
    *,
    E: Const,
    B: Const,
    K: Const,
    ROWS: Const,
    SPLIT: Const,
    BLOCK: Const,
):
    """`out = (x @ w.T) / sqrt(sum(squares) / K + eps)` for each row, in f32, rounded once; ROWS outputs per block. `x` has rows
    times the norm's weight, `squares` the sums of squares of each row's groups of 16.

    SPLIT warps share a sum: each has BLOCK columns of SPLIT * BLOCK.
    """
    grid(N // ROWS)
    requires(8 % B == 0 and K % (SPLIT * BLOCK) == 0 and N % ROWS == 0)
    resident(w)
    n = bid(0)
    total = sum(load(squares, (0, 0), shape=(B, K // 16)), axis=1)
    scale = rsqrt(total * (1.0 / K) + eps)
    acc = zeros((SPLIT, ROWS, 8), f32)
    for k in range(K // (SPLIT * BLOCK)):
        a = weights_in_parts(load(w, (n, k), shape=(ROWS, SPLIT * BLOCK)), ROWS, SPLIT, BLOCK)
        b = rows_in_parts(load(x, (0, k), shape=(B, SPLIT * BLOCK)), B, SPLIT, BLOCK)
        acc = mma(a, b, acc)
    store(out, (0, n), astype((each_once(sum(acc, axis=0), ROWS, B) * scale[None, :]).T, E))
