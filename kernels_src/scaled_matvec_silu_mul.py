"""Gate and up projections at decode after a norm that has begun, with their activation (Shazeer, GLU Variants, 2020)."""

from typing import Literal

import tilec as tl

from .dims import I2, E, I, K


@tl.kernel
def scaled_matvec_silu_mul(
    x: tl.In[E, Literal[1], K],
    squares: tl.In[tl.f32, Literal[1], Literal["K // 4"]],
    w: tl.In[E, I2, K],
    out: tl.Out[E, Literal[1], I],
    eps: tl.f32,
    *,
    E: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
):
    """`out = silu(gate) * up` in f32, rounded once, where `w` holds the rows of gate, then those of up, and both are made as
    `scaled_matvec` makes its outputs. ROWS outputs per block."""
    tl.grid(I // ROWS)
    tl.requires(2 * I == I2 and I % ROWS == 0 and K % BLOCK == 0)
    tl.resident(w)
    n = tl.bid(0)
    total = tl.sum(tl.load(squares, (0, 0), shape=(1, K // 4)), axis=1)
    scale = tl.rsqrt(total * (1.0 / K) + eps, fast=True)
    left = tl.zeros((ROWS, BLOCK), tl.f32)
    right = tl.zeros((ROWS, BLOCK), tl.f32)
    for k in range(K // BLOCK):
        y = tl.load(x, (0, k), shape=(1, BLOCK)).astype(tl.f32)
        left += y * tl.load(w, (n, k), shape=(ROWS, BLOCK)).astype(tl.f32)
        right += y * tl.load(w, offset=(I + n * ROWS, k * BLOCK), shape=(ROWS, BLOCK)).astype(tl.f32)
    gate, up = tl.sum(left, axis=1) * scale, tl.sum(right, axis=1) * scale
    tl.store(out, (0, n), tl.astype((gate * tl.sigmoid(gate, fast=True) * up)[None, :], E))
