"""`scaled_matvec_silu_mul_int4` of the tokens of several sequences: the weights are read once for all rows."""

from typing import Literal

import tilec as tl

from .dims import I2, B, E, I, K
from .eight_rows import each_once
from .int4_groups import GROUP, WORDS, group_rows, group_sums, row_sums


class F(tl.Element):
    """bf16 or f16"""


@tl.kernel
def scaled_matvec_silu_mul_rows_int4(
    x: tl.In[E, B, K],
    squares: tl.In[tl.f32, B, Literal["K // 16"]],
    w: tl.In[tl.u32, I2, Literal["K // 8"]],
    w_scales: tl.In[F, Literal["K // 128"], I2],
    w_zeros: tl.In[tl.u8, Literal["K // 128"], I2],
    out: tl.Out[E, B, I],
    eps: tl.f32,
    *,
    E: tl.Const,
    F: tl.Const,
    B: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
):
    """`scaled_matvec_silu_mul_rows` with the weights of `int4_groups`, in f32, rounded once; ROWS outputs per block, SPLIT
    groups at a time."""
    tl.grid(I // ROWS)
    tl.requires(8 % B == 0 and 2 * I == I2 and I % ROWS == 0 and K % (SPLIT * GROUP) == 0)
    tl.resident(w, w_scales, w_zeros)
    n = tl.bid(0)
    total = tl.sum(tl.load(squares, (0, 0), shape=(B, K // 16)), axis=1)
    scale = tl.rsqrt(total * (1.0 / K) + eps, fast=True)
    left = tl.zeros((SPLIT, ROWS, 8), tl.f32)
    right = tl.zeros((SPLIT, ROWS, 8), tl.f32)
    for k in range(K // (SPLIT * GROUP)):
        a = group_rows(tl.load(x, (0, k), shape=(B, SPLIT * GROUP)), B, SPLIT)
        s, z = tl.load(w_scales, (k, n), shape=(SPLIT, ROWS)), tl.load(w_zeros, (k, n), shape=(SPLIT, ROWS))
        left += group_sums(a, tl.load(w, (n, k), shape=(ROWS, SPLIT * WORDS)), s, z, SPLIT, ROWS, E)
        s = tl.load(w_scales, offset=(k * SPLIT, I + n * ROWS), shape=(SPLIT, ROWS))
        z = tl.load(w_zeros, offset=(k * SPLIT, I + n * ROWS), shape=(SPLIT, ROWS))
        words = tl.load(w, offset=(I + n * ROWS, k * (SPLIT * WORDS)), shape=(ROWS, SPLIT * WORDS))
        right += group_sums(a, words, s, z, SPLIT, ROWS, E)
    gate = each_once(row_sums(left, E), ROWS, B) * scale[None, :]
    up = each_once(row_sums(right, E), ROWS, B) * scale[None, :]
    tl.store(out, (0, n), tl.astype((gate * tl.sigmoid(gate, fast=True) * up).T, E))
