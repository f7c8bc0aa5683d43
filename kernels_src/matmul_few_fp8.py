"""Linear layer at prefill with small M and FP8 weights: `matmul_few`, whose weights have a scale for each 128 x 128."""

from typing import Literal

import tilec as tl

from .dims import E, K, M, N
from .few_tokens import MOST, fp8_sums
from .fp8_blocks import SQUARE


@tl.kernel
def matmul_few_fp8(
    a: tl.In[E, M, K],
    b: tl.In[tl.f8e4m3, N, K],
    b_scales: tl.In[tl.f32, Literal["N // 128"], Literal["K // 128"]],
    out: tl.Out[E, M, N],
    *,
    E: tl.Const,
    BM: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
):
    """`out = a @ w.T` with `w[n, k] = b[n, k] * b_scales[n // 128, k // 128]`: a block's scale multiplies sums of 128 products,
    in f32, rounded once. A block has ROWS outputs of BM tokens, at most MOST, and SPLIT sums of 128 inputs side by side."""
    assert SQUARE % ROWS == 0
    TOKENS = min(BM, MOST)
    tl.resident(b, b_scales)
    tl.requires(K % (SPLIT * SQUARE) == 0 and N % SQUARE == 0)
    tiles = tl.cdiv(M, TOKENS)
    tl.grid(tiles * (N // ROWS))
    tl.requires(tiles * (N // ROWS) <= 2147483647)
    m, n = tl.bid(0) % tiles, tl.bid(0) // tiles
    acc = tl.zeros((SPLIT, ROWS, TOKENS), tl.f32)
    for k in range(K // (SPLIT * SQUARE)):
        x = tl.load(a, (m, k), shape=(TOKENS, SPLIT * SQUARE), pad=0)
        s = tl.load(b_scales, (n // (SQUARE // ROWS), k), shape=(1, SPLIT))
        acc += fp8_sums(x, tl.load(b, (n, k), shape=(ROWS, SPLIT * SQUARE)), s, TOKENS, ROWS, SPLIT)
    tl.store(out, (m, n), tl.astype(tl.sum(acc, axis=0).T, E), mask=True)
