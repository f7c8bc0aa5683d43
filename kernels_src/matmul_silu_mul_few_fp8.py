"""First half of a SwiGLU layer at prefill with small M and FP8 weights: `matmul_silu_mul_few` of `matmul_few_fp8`."""

from typing import Literal

import tilec as tl

from .dims import I2, E, I, K, M
from .few_tokens import MOST, fp8_sums
from .fp8_blocks import SQUARE


@tl.kernel
def matmul_silu_mul_few_fp8(
    a: tl.In[E, M, K],
    b: tl.In[tl.f8e4m3, I2, K],
    b_scales: tl.In[tl.f32, Literal["I2 // 128"], Literal["K // 128"]],
    out: tl.Out[E, M, I],
    *,
    E: tl.Const,
    BM: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
):
    """`out = silu(a @ w[:I].T) * (a @ w[I:].T)` with the weights of `matmul_few_fp8`, in f32, rounded once."""
    assert SQUARE % ROWS == 0
    TOKENS = min(BM, MOST)
    tl.resident(b, b_scales)
    tl.requires(2 * I == I2 and K % (SPLIT * SQUARE) == 0 and I % SQUARE == 0)
    tiles = tl.cdiv(M, TOKENS)
    tl.grid(tiles * (I // ROWS))
    tl.requires(tiles * (I // ROWS) <= 2147483647)
    m, n = tl.bid(0) % tiles, tl.bid(0) // tiles
    gate, up = tl.zeros((SPLIT, ROWS, TOKENS), tl.f32), tl.zeros((SPLIT, ROWS, TOKENS), tl.f32)
    for k in range(K // (SPLIT * SQUARE)):
        x = tl.load(a, (m, k), shape=(TOKENS, SPLIT * SQUARE), pad=0)
        s = tl.load(b_scales, (n // (SQUARE // ROWS), k), shape=(1, SPLIT))
        t = tl.load(b_scales, offset=(I // SQUARE + n // (SQUARE // ROWS), k * SPLIT), shape=(1, SPLIT))
        u = tl.load(b, offset=(I + n * ROWS, k * SPLIT * SQUARE), shape=(ROWS, SPLIT * SQUARE))
        gate += fp8_sums(x, tl.load(b, (n, k), shape=(ROWS, SPLIT * SQUARE)), s, TOKENS, ROWS, SPLIT)
        up += fp8_sums(x, u, t, TOKENS, ROWS, SPLIT)
    left, right = tl.sum(gate, axis=0), tl.sum(up, axis=0)
    tl.store(out, (m, n), tl.astype((left * tl.sigmoid(left, fast=True) * right).T, E), mask=True)
