"""`scaled_matvec_silu_mul_fp8` of the tokens of several sequences: the weights are read once for all rows."""

from typing import Literal

import tilec as tl

from .dims import I2, B, E, I, K
from .eight_rows import each_once
from .fp8_blocks import SQUARE
from .fp8_products import scaled_products


@tl.kernel
def scaled_matvec_silu_mul_rows_fp8(
    x: tl.In[E, B, K],
    squares: tl.In[tl.f32, B, Literal["K // 16"]],
    w: tl.In[tl.f8e4m3, I2, K],
    w_scales: tl.In[tl.f32, Literal["I2 // 128"], Literal["K // 128"]],
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
    """`scaled_matvec_silu_mul_rows` with the weights `w[n, k] * w_scales[n // 128, k // 128]`. SPLIT sums of 128 columns are
    side by side, as in `scaled_matvec_rows_fp8`."""
    assert SQUARE % ROWS == 0
    assert SQUARE % BLOCK == 0
    tl.grid(I // ROWS)
    tl.requires(8 % B == 0 and 2 * I == I2 and I % SQUARE == 0 and K % (SPLIT * BLOCK) == 0 and SPLIT * BLOCK % SQUARE == 0)
    tl.resident(w, w_scales)
    n = tl.bid(0)
    total = tl.sum(tl.load(squares, (0, 0), shape=(B, K // 16)), axis=1)
    scale = tl.rsqrt(total * (1.0 / K) + eps, fast=True)
    left = tl.zeros((SPLIT * BLOCK // SQUARE, SQUARE // BLOCK, ROWS, 8), tl.f32)
    right = tl.zeros((SPLIT * BLOCK // SQUARE, SQUARE // BLOCK, ROWS, 8), tl.f32)
    for k in range(K // (SPLIT * BLOCK)):
        y = tl.load(x, (0, k), shape=(B, SPLIT * BLOCK))
        s = tl.load(w_scales, (n // (SQUARE // ROWS), k), shape=(1, SPLIT * BLOCK // SQUARE))
        t = tl.load(
            w_scales,
            offset=(I // SQUARE + n // (SQUARE // ROWS), k * (SPLIT * BLOCK // SQUARE)),
            shape=(1, SPLIT * BLOCK // SQUARE),
        )
        a = tl.load(w, (n, k), shape=(ROWS, SPLIT * BLOCK))
        b = tl.load(w, offset=(I + n * ROWS, k * SPLIT * BLOCK), shape=(ROWS, SPLIT * BLOCK))
        left += scaled_products(y, a, s, B, ROWS, SPLIT, BLOCK)
        right += scaled_products(y, b, t, B, ROWS, SPLIT, BLOCK)
    gate = each_once(tl.sum(left, axis=(0, 1)), ROWS, B) * scale[None, :]
    up = each_once(tl.sum(right, axis=(0, 1)), ROWS, B) * scale[None, :]
    tl.store(out, (0, n), tl.astype((gate * tl.sigmoid(gate, fast=True) * up).T, E))
