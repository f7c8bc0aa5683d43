"""Gate and up projections at decode after a norm that has begun, with their activation and FP8 weights (Shazeer, GLU Variants,
2020)."""

from typing import Literal

import tilec as tl

from .dims import I2, E, I, K
from .fp8_blocks import RUN, SQUARE, scaled_sums


@tl.kernel
def scaled_matvec_silu_mul_fp8(
    x: tl.In[E, Literal[1], K],
    squares: tl.In[tl.f32, Literal[1], Literal["K // 4"]],
    w: tl.In[tl.f8e4m3, I2, K],
    w_scales: tl.In[tl.f32, Literal["I2 // 128"], Literal["K // 128"]],
    out: tl.Out[E, Literal[1], I],
    eps: tl.f32,
    *,
    E: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
    PARTS: tl.Const,
):
    """`scaled_matvec_silu_mul` with the weights `w[n, k] * w_scales[n // 128, k // 128]`, in f32, rounded once.
    ROWS outputs per block, PARTS times BLOCK columns in an iteration."""
    assert SQUARE % ROWS == 0
    tl.grid(I // ROWS)
    tl.requires(2 * I == I2 and I % SQUARE == 0 and K % (PARTS * BLOCK) == 0 and BLOCK % SQUARE == 0)
    tl.resident(w, w_scales)
    n = tl.bid(0)
    total = tl.sum(tl.load(squares, (0, 0), shape=(1, K // 4)), axis=1)
    scale = tl.rsqrt(total * (1.0 / K) + eps, fast=True)
    left = tl.zeros((ROWS, BLOCK // SQUARE, SQUARE // RUN), tl.f32)
    right = tl.zeros((ROWS, BLOCK // SQUARE, SQUARE // RUN), tl.f32)
    for step in range(K // (PARTS * BLOCK)):
        for part in tl.static_range(PARTS):
            k = step * PARTS + part
            y = tl.load(x, (0, k), shape=(1, BLOCK))
            s = tl.load(w_scales, (n // (SQUARE // ROWS), k), shape=(1, BLOCK // SQUARE))
            t = tl.load(
                w_scales, offset=(I // SQUARE + n // (SQUARE // ROWS), k * (BLOCK // SQUARE)), shape=(1, BLOCK // SQUARE)
            )
            left += scaled_sums(y, tl.load(w, (n, k), shape=(ROWS, BLOCK)), s, ROWS, BLOCK)
            right += scaled_sums(y, tl.load(w, offset=(I + n * ROWS, k * BLOCK), shape=(ROWS, BLOCK)), t, ROWS, BLOCK)
    gate, up = tl.sum(left, axis=(1, 2)) * scale, tl.sum(right, axis=(1, 2)) * scale
    tl.store(out, (0, n), tl.astype((gate * tl.sigmoid(gate, fast=True) * up)[None, :], E))
