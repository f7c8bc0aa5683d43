"""Gated activation of a SwiGLU layer on rows that hold gate and up side by side (Shazeer, GLU Variants, 2020)."""

import tilec as tl

from .dims import I2, E, I, T


@tl.kernel
def silu_mul_rows(x: tl.In[E, T, I2], out: tl.Out[E, T, I], *, E: tl.Const, ROWS: tl.Const, BLOCK: tl.Const):
    """`out[t, i] = silu(x[t, i]) * x[t, I + i]`: the merged projection's gate half times its up half, rounded once."""
    tl.grid(tl.cdiv(T, ROWS), I // BLOCK)
    tl.requires(2 * I == I2 and I % BLOCK == 0 and I2 % BLOCK == 0)
    rows, part = tl.bid(0), tl.bid(1)
    gate = tl.load(x, (rows, part), shape=(ROWS, BLOCK), pad=0).astype(tl.f32)
    up = tl.load(x, offset=(rows * ROWS, I + part * BLOCK), shape=(ROWS, BLOCK), pad=0).astype(tl.f32)
    tl.store(out, (rows, part), tl.astype(gate * tl.sigmoid(gate) * up, E), mask=True)
