"""`matmul_few_fp8` whose depth several blocks share: parts of the product, each over a run of the depth (`matmul_split`)."""

from typing import Literal

import tilec as tl

from .dims import E, K, M, N
from .few_tokens import MOST, fp8_sums
from .fp8_blocks import SQUARE


class S(tl.Dim):
    """parts of the depth"""


@tl.kernel
def matmul_split_fp8(
    a: tl.In[E, M, K],
    b: tl.In[tl.f8e4m3, N, K],
    b_scales: tl.In[tl.f32, Literal["N // 128"], Literal["K // 128"]],
    parts: tl.Out[tl.f32, S, M, N],
    *,
    E: tl.Const,
    S: tl.Const,
    BM: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
):
    """`parts[s]` is the product over the s-th run of steps of SPLIT * 128 inputs; the last runs may be shorter, or have none
    and be zero."""
    assert SQUARE % ROWS == 0
    TOKENS = min(BM, MOST)
    tl.resident(b, b_scales)
    tl.requires(K % (SPLIT * SQUARE) == 0 and N % SQUARE == 0)
    tiles, steps = tl.cdiv(M, TOKENS), K // (SPLIT * SQUARE)
    tl.grid(tiles * (N // ROWS), S)
    tl.requires(tiles * (N // ROWS) <= 2147483647)
    m, n, part = tl.bid(0) % tiles, tl.bid(0) // tiles, tl.bid(1)
    run = tl.cdiv(steps, S)
    acc = tl.zeros((SPLIT, ROWS, TOKENS), tl.f32)
    for k in range(part * run, min(part * run + run, steps)):
        x = tl.load(a, (m, k), shape=(TOKENS, SPLIT * SQUARE), pad=0)
        s = tl.load(b_scales, (n // (SQUARE // ROWS), k), shape=(1, SPLIT))
        acc += fp8_sums(x, tl.load(b, (n, k), shape=(ROWS, SPLIT * SQUARE)), s, TOKENS, ROWS, SPLIT)
    tl.store(parts, (part, m, n), tl.sum(acc, axis=0).T[None, :, :], mask=True)
