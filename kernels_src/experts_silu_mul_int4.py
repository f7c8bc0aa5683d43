"""Gate and up projections of the experts of each token, with their activation and INT4 weights (Shazeer, GLU Variants, 2020;
Shazeer et al., Outrageously Large Neural Networks, 2017)."""

from typing import Literal

import tilec as tl

from .dims import I2, E, I, K, T
from .experts_dims import C, X
from .int4_groups import GROUP as COLUMNS
from .int4_groups import WORDS, each_row, group_inputs, group_sums, row_sums


class F(tl.Element):
    """bf16 or f16"""


@tl.kernel
def experts_silu_mul_int4(
    x: tl.In[E, T, K],
    squares: tl.In[tl.f32, T, Literal["K // GROUP"]],
    experts: tl.In[tl.i32, T, C],
    w: tl.In[tl.u32, X, I2, Literal["K // 8"]],
    w_scales: tl.In[F, X, Literal["K // 128"], I2],
    w_zeros: tl.In[tl.u8, X, Literal["K // 128"], I2],
    out: tl.Out[E, T, C, I],
    eps: tl.f32,
    *,
    E: tl.Const,
    F: tl.Const,
    K: tl.Const,
    C: tl.Const,
    GROUP: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
):
    """`experts_silu_mul` with the weights of `int4_groups`, in f32, rounded once; ROWS outputs of one expert and token per
    block, SPLIT groups of weights at a time."""
    tl.grid(C, T, I // ROWS)
    tl.requires(2 * I == I2 and I % ROWS == 0 and K % (SPLIT * COLUMNS) == 0 and K % GROUP == 0)
    tl.values(experts, 0, X)
    tl.resident(w, w_scales, w_zeros)
    c, t, n = tl.bid(0), tl.bid(1), tl.bid(2)
    e = tl.load(experts, (t, c))
    parts = tl.load(squares, (t, 0), shape=(1, K // GROUP))
    left = tl.zeros((SPLIT, ROWS, 8), tl.f32)
    right = tl.zeros((SPLIT, ROWS, 8), tl.f32)
    for k in range(K // (SPLIT * COLUMNS)):
        a = group_inputs(tl.load(x, (t, k), shape=(1, SPLIT * COLUMNS)), SPLIT)
        s = tl.load(w_scales, (e, k, n), shape=(1, SPLIT, ROWS)).reshape((SPLIT, ROWS))
        z = tl.load(w_zeros, (e, k, n), shape=(1, SPLIT, ROWS)).reshape((SPLIT, ROWS))
        words = tl.load(w, (e, n, k), shape=(1, ROWS, SPLIT * WORDS)).reshape((ROWS, SPLIT * WORDS))
        left += group_sums(a, words, s, z, SPLIT, ROWS, E)
        s = tl.load(w_scales, offset=(e, k * SPLIT, I + n * ROWS), shape=(1, SPLIT, ROWS)).reshape((SPLIT, ROWS))
        z = tl.load(w_zeros, offset=(e, k * SPLIT, I + n * ROWS), shape=(1, SPLIT, ROWS)).reshape((SPLIT, ROWS))
        words = tl.load(w, offset=(e, I + n * ROWS, k * (SPLIT * WORDS)), shape=(1, ROWS, SPLIT * WORDS))
        right += group_sums(a, words.reshape((ROWS, SPLIT * WORDS)), s, z, SPLIT, ROWS, E)
    scale = tl.rsqrt(tl.sum(parts) * (1.0 / K) + eps, fast=True)  # here, so that no sum comes before the weights
    gate, up = each_row(row_sums(left, E)) * scale, each_row(row_sums(right, E)) * scale
    tl.store(out, (t, c, n), tl.astype(gate * tl.sigmoid(gate, fast=True) * up, E)[:, None, :])
