"""`scaled_matvec_silu_mul` of the tokens of several sequences: the weights are read once for all rows."""

from typing import Literal

import tilec as tl

from .dims import I2, B, E, I, K
from .eight_rows import each_once, rows_in_parts, weights_in_parts


@tl.kernel
def scaled_matvec_silu_mul_rows(
    x: tl.In[E, B, K],
    squares: tl.In[tl.f32, B, Literal["K // 16"]],
    w: tl.In[E, I2, K],
    out: tl.Out[E, B, I],
    eps: tl.f32,
    *,
    E: tl.Const,
    B: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
    BLOCK: tl.Const,
):
    """`out = silu(gate) * up` in f32 for each row, rounded once, where `w` holds the rows of gate, then those of up. Both
    are made as `scaled_matvec_rows` makes its outputs. ROWS outputs per block."""
    tl.grid(I // ROWS)
    tl.requires(8 % B == 0 and 2 * I == I2 and I % ROWS == 0 and K % (SPLIT * BLOCK) == 0)
    tl.resident(w)
    n = tl.bid(0)
    total = tl.sum(tl.load(squares, (0, 0), shape=(B, K // 16)), axis=1)
    scale = tl.rsqrt(total * (1.0 / K) + eps, fast=True)
    left = tl.zeros((SPLIT, ROWS, 8), tl.f32)
    right = tl.zeros((SPLIT, ROWS, 8), tl.f32)
    for k in range(K // (SPLIT * BLOCK)):
        y = rows_in_parts(tl.load(x, (0, k), shape=(B, SPLIT * BLOCK)), B, SPLIT, BLOCK)
        a = weights_in_parts(tl.load(w, (n, k), shape=(ROWS, SPLIT * BLOCK)), ROWS, SPLIT, BLOCK)
        b = tl.load(w, offset=(I + n * ROWS, k * SPLIT * BLOCK), shape=(ROWS, SPLIT * BLOCK))
        left = tl.mma(a, y, left)
        right = tl.mma(weights_in_parts(b, ROWS, SPLIT, BLOCK), y, right)
    gate = each_once(tl.sum(left, axis=0), ROWS, B) * scale[None, :]
    up = each_once(tl.sum(right, axis=0), ROWS, B) * scale[None, :]
    tl.store(out, (0, n), tl.astype((gate * tl.sigmoid(gate, fast=True) * up).T, E))
