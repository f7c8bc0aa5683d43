"""First half of a SwiGLU layer at prefill with small M and INT4 weights: `matmul_silu_mul_few` of `matmul_few_int4`."""

from typing import Literal

import tilec as tl

from .dims import I2, E, I, K, M
from .few_tokens import MOST, int4_sums
from .int4_groups import GROUP, WORDS, row_sums


class F(tl.Element):
    """bf16 or f16"""


@tl.kernel
def matmul_silu_mul_few_int4(
    a: tl.In[E, M, K],
    b: tl.In[tl.u32, I2, Literal["K // 8"]],
    b_scales: tl.In[F, Literal["K // 128"], I2],
    b_zeros: tl.In[tl.u8, Literal["K // 128"], I2],
    out: tl.Out[E, M, I],
    *,
    E: tl.Const,
    F: tl.Const,
    BM: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
):
    """`out = silu(a @ w[:I].T) * (a @ w[I:].T)` in f32, rounded once."""
    TOKENS = min(BM, MOST)
    tl.resident(b, b_scales, b_zeros)
    tl.requires(2 * I == I2 and K % (SPLIT * GROUP) == 0 and I % ROWS == 0)
    tiles = tl.cdiv(M, TOKENS)
    tl.grid(tiles * (I // ROWS))
    tl.requires(tiles * (I // ROWS) <= 2147483647)
    m, n = tl.bid(0) % tiles, tl.bid(0) // tiles
    up_at = I + n * ROWS
    gate, up = tl.zeros((SPLIT, ROWS, TOKENS), tl.f32), tl.zeros((SPLIT, ROWS, TOKENS), tl.f32)
    for k in range(K // (SPLIT * GROUP)):
        x = tl.load(a, (m, k), shape=(TOKENS, SPLIT * GROUP), pad=0)
        w = tl.load(b, (n, k), shape=(ROWS, SPLIT * WORDS))
        u = tl.load(b, offset=(up_at, k * SPLIT * WORDS), shape=(ROWS, SPLIT * WORDS))
        s, z = tl.load(b_scales, (k, n), shape=(SPLIT, ROWS)), tl.load(b_zeros, (k, n), shape=(SPLIT, ROWS))
        gate += int4_sums(x, w, s, z, TOKENS, ROWS, SPLIT, E)
        s = tl.load(b_scales, offset=(k * SPLIT, up_at), shape=(SPLIT, ROWS))
        z = tl.load(b_zeros, offset=(k * SPLIT, up_at), shape=(SPLIT, ROWS))
        up += int4_sums(x, u, s, z, TOKENS, ROWS, SPLIT, E)
    left, right = row_sums(gate, E), row_sums(up, E)
    tl.store(out, (m, n), tl.astype((left * tl.sigmoid(left, fast=True) * right).T, E), mask=True)
