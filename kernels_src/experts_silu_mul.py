"""Gate and up projections of the experts of each token, with their activation (Shazeer, GLU Variants, 2020; Shazeer et al.,
Outrageously Large Neural Networks, 2017)."""

from typing import Literal

import tilec as tl

from .dims import I2, E, I, K, T
from .experts_dims import C, X


@tl.kernel
def experts_silu_mul(
    x: tl.In[E, T, K],
    squares: tl.In[tl.f32, T, Literal["K // GROUP"]],
    experts: tl.In[tl.i32, T, C],
    w: tl.In[E, X, I2, K],
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
    """`out[t, c]` is what `scaled_matvec_silu_mul` makes of the row `x[t]` with the weights `w[experts[t, c]]`; a sum of
    squares is of GROUP elements. ROWS outputs of one expert and token per block. Blocks of the same rows are neighbors, so
    that weights which several tokens chose are read once."""
    tl.grid(C, T, I // ROWS)
    tl.requires(2 * I == I2 and I % ROWS == 0 and K % BLOCK == 0 and K % GROUP == 0)
    tl.values(experts, 0, X)
    tl.resident(w)
    c, t, n = tl.bid(0), tl.bid(1), tl.bid(2)
    e = tl.load(experts, (t, c))
    parts = tl.load(squares, (t, 0), shape=(1, K // GROUP))
    left = tl.zeros((1, ROWS, BLOCK), tl.f32)
    right = tl.zeros((1, ROWS, BLOCK), tl.f32)
    for k in range(K // BLOCK):
        y = tl.load(x, (t, k), shape=(1, BLOCK)).astype(tl.f32)[:, None, :]
        left += y * tl.load(w, (e, n, k), shape=(1, ROWS, BLOCK)).astype(tl.f32)
        right += y * tl.load(w, offset=(e, I + n * ROWS, k * BLOCK), shape=(1, ROWS, BLOCK)).astype(tl.f32)
    scale = tl.rsqrt(tl.sum(parts, axis=1) * (1.0 / K) + eps, fast=True)  # here, so that no sum comes before the weights
    gate, up = tl.sum(left, axis=2) * scale, tl.sum(right, axis=2) * scale
    tl.store(out, (t, c, n), tl.astype(gate * tl.sigmoid(gate, fast=True) * up, E)[:, None, :])
