"""`scaled_matvec_fp8` of the tokens of several sequences: the weights are read once for all rows."""

from typing import Literal

import tilec as tl

from .dims import B, E, K, N
from .eight_rows import each_once
from .fp8_blocks import SQUARE
from .fp8_products import scaled_products


@tl.kernel
def scaled_matvec_rows_fp8(
    x: tl.In[E, B, K],
    squares: tl.In[tl.f32, B, Literal["K // 16"]],
    w: tl.In[tl.f8e4m3, N, K],
    w_scales: tl.In[tl.f32, Literal["N // 128"], Literal["K // 128"]],
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
    """`scaled_matvec_rows` with the weights `w[n, k] * w_scales[n // 128, k // 128]`: a block's scale multiplies sums of 128
    products, in f32. ROWS outputs per block.

    SPLIT sums of 128 columns are side by side, divided among warps.
    """
    assert SQUARE % ROWS == 0
    assert SQUARE % BLOCK == 0
    tl.grid(N // ROWS)
    tl.requires(8 % B == 0 and K % (SPLIT * BLOCK) == 0 and SPLIT * BLOCK % SQUARE == 0 and N % SQUARE == 0)
    tl.resident(w, w_scales)
    n = tl.bid(0)
    total = tl.sum(tl.load(squares, (0, 0), shape=(B, K // 16)), axis=1)
    scale = tl.rsqrt(total * (1.0 / K) + eps, fast=True)
    acc = tl.zeros((SPLIT * BLOCK // SQUARE, SQUARE // BLOCK, ROWS, 8), tl.f32)
    for k in range(K // (SPLIT * BLOCK)):
        s = tl.load(w_scales, (n // (SQUARE // ROWS), k), shape=(1, SPLIT * BLOCK // SQUARE))
        y = tl.load(x, (0, k), shape=(B, SPLIT * BLOCK))
        acc += scaled_products(y, tl.load(w, (n, k), shape=(ROWS, SPLIT * BLOCK)), s, B, ROWS, SPLIT, BLOCK)
    tl.store(out, (0, n), tl.astype((each_once(tl.sum(acc, axis=(0, 1)), ROWS, B) * scale[None, :]).T, E))
