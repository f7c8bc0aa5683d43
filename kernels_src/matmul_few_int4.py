"""Linear layer at prefill with small M and INT4 weights: `matmul_few` with the weights of `int4_groups`."""

from typing import Literal

import tilec as tl

from .dims import E, K, M, N
from .few_tokens import MOST, int4_sums
from .int4_groups import GROUP, WORDS, row_sums


class F(tl.Element):
    """bf16 or f16"""


@tl.kernel
def matmul_few_int4(
    a: tl.In[E, M, K],
    b: tl.In[tl.u32, N, Literal["K // 8"]],
    b_scales: tl.In[F, Literal["K // 128"], N],
    b_zeros: tl.In[tl.u8, Literal["K // 128"], N],
    out: tl.Out[E, M, N],
    *,
    E: tl.Const,
    F: tl.Const,
    BM: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
):
    """`out = a @ w.T` in f32, rounded once. A block has ROWS outputs of BM tokens, at most MOST, and SPLIT groups side by
    side."""
    TOKENS = min(BM, MOST)
    tl.resident(b, b_scales, b_zeros)
    tl.requires(K % (SPLIT * GROUP) == 0 and N % ROWS == 0)
    tiles = tl.cdiv(M, TOKENS)
    tl.grid(tiles * (N // ROWS))
    tl.requires(tiles * (N // ROWS) <= 2147483647)
    m, n = tl.bid(0) % tiles, tl.bid(0) // tiles
    acc = tl.zeros((SPLIT, ROWS, TOKENS), tl.f32)
    for k in range(K // (SPLIT * GROUP)):
        x = tl.load(a, (m, k), shape=(TOKENS, SPLIT * GROUP), pad=0)
        s, z = tl.load(b_scales, (k, n), shape=(SPLIT, ROWS)), tl.load(b_zeros, (k, n), shape=(SPLIT, ROWS))
        acc += int4_sums(x, tl.load(b, (n, k), shape=(ROWS, SPLIT * WORDS)), s, z, TOKENS, ROWS, SPLIT, E)
    tl.store(out, (m, n), tl.astype(row_sums(acc, E).T, E), mask=True)
