"""Gate and up projections of the experts of each token, with their activation and FP8 weights (Shazeer, GLU Variants, 2020;
Shazeer et al., Outrageously Large Neural Networks, 2017)."""

from typing import Literal

import tilec as tl

from .dims import I2, E, I, K, T
from .experts_dims import C, X
from .fp8_blocks import RUN, SQUARE, scaled_sums


@tl.kernel
def experts_silu_mul_fp8(
    x: tl.In[E, T, K],
    squares: tl.In[tl.f32, T, Literal["K // GROUP"]],
    experts: tl.In[tl.i32, T, C],
    w: tl.In[tl.f8e4m3, X, I2, K],
    w_scales: tl.In[tl.f32, X, Literal["I2 // 128"], Literal["K // 128"]],
    out: tl.Out[E, T, C, I],
    eps: tl.f32,
    *,
    E: tl.Const,
    K: tl.Const,
    C: tl.Const,
    GROUP: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
):
    """`experts_silu_mul` with the weights `w[e, n, k] * w_scales[e, n // 128, k // 128]`, in f32, rounded once. ROWS outputs of
    one expert and token per block."""
    assert SQUARE % ROWS == 0
    tl.grid(C, T, I // ROWS)
    tl.requires(2 * I == I2 and I % SQUARE == 0 and K % BLOCK == 0 and BLOCK % SQUARE == 0 and K % GROUP == 0)
    tl.values(experts, 0, X)
    tl.resident(w, w_scales)
    c, t, n = tl.bid(0), tl.bid(1), tl.bid(2)
    e = tl.load(experts, (t, c))
    parts = tl.load(squares, (t, 0), shape=(1, K // GROUP))
    left = tl.zeros((ROWS, BLOCK // SQUARE, SQUARE // RUN), tl.f32)
    right = tl.zeros((ROWS, BLOCK // SQUARE, SQUARE // RUN), tl.f32)
    for k in range(K // BLOCK):
        y = tl.load(x, (t, k), shape=(1, BLOCK))
        row, column = n // (SQUARE // ROWS), k * (BLOCK // SQUARE)
        s = tl.load(w_scales, offset=(e, row, column), shape=(1, 1, BLOCK // SQUARE)).reshape((1, BLOCK // SQUARE))
        r = tl.load(w_scales, offset=(e, I // SQUARE + row, column), shape=(1, 1, BLOCK // SQUARE))
        a = tl.load(w, (e, n, k), shape=(1, ROWS, BLOCK)).reshape((ROWS, BLOCK))
        b = tl.load(w, offset=(e, I + n * ROWS, k * BLOCK), shape=(1, ROWS, BLOCK)).reshape((ROWS, BLOCK))
        left += scaled_sums(y, a, s, ROWS, BLOCK)
        right += scaled_sums(y, b, r.reshape((1, BLOCK // SQUARE)), ROWS, BLOCK)
    scale = tl.rsqrt(tl.sum(parts, axis=1) * (1.0 / K) + eps, fast=True)  # here, so that no sum comes before the weights
    gate, up = tl.sum(left, axis=(1, 2)) * scale, tl.sum(right, axis=(1, 2)) * scale
    tl.store(out, (t, c, n), tl.astype(gate * tl.sigmoid(gate, fast=True) * up, E)[None, None, :])
