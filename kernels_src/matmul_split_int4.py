"""`matmul_few_int4` whose depth several blocks share: parts of the product, each over a run of the depth (`matmul_split`)."""

from typing import Literal

import tilec as tl

from .dims import E, K, M, N
from .few_tokens import MOST, int4_sums
from .int4_groups import GROUP, WORDS, row_sums


class S(tl.Dim):
    """parts of the depth"""


class F(tl.Element):
    """bf16 or f16"""


@tl.kernel
def matmul_split_int4(
    a: tl.In[E, M, K],
    b: tl.In[tl.u32, N, Literal["K // 8"]],
    b_scales: tl.In[F, Literal["K // 128"], N],
    b_zeros: tl.In[tl.u8, Literal["K // 128"], N],
    parts: tl.Out[tl.f32, S, M, N],
    *,
    E: tl.Const,
    F: tl.Const,
    S: tl.Const,
    BM: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
):
    """`parts[s]` is the product over the s-th run of steps of SPLIT groups; the last runs may be shorter, or have none and be
    zero."""
    TOKENS = min(BM, MOST)
    tl.resident(b, b_scales, b_zeros)
    tl.requires(K % (SPLIT * GROUP) == 0 and N % ROWS == 0)
    tiles, steps = tl.cdiv(M, TOKENS), K // (SPLIT * GROUP)
    tl.grid(tiles * (N // ROWS), S)
    tl.requires(tiles * (N // ROWS) <= 2147483647)
    m, n, part = tl.bid(0) % tiles, tl.bid(0) // tiles, tl.bid(1)
    run = tl.cdiv(steps, S)
    acc = tl.zeros((SPLIT, ROWS, TOKENS), tl.f32)
    for k in range(part * run, min(part * run + run, steps)):
        x = tl.load(a, (m, k), shape=(TOKENS, SPLIT * GROUP), pad=0)
        s, z = tl.load(b_scales, (k, n), shape=(SPLIT, ROWS)), tl.load(b_zeros, (k, n), shape=(SPLIT, ROWS))
        acc += int4_sums(x, tl.load(b, (n, k), shape=(ROWS, SPLIT * WORDS)), s, z, TOKENS, ROWS, SPLIT, E)
    tl.store(parts, (part, m, n), row_sums(acc, E).T[None, :, :], mask=True)
