"""`experts_matmul_few` with INT4 weights: codes are unpacked in registers, once for all rows of a tile (`few_tokens`)."""

from typing import Literal

import tilec as tl

from .dims import E, K, N
from .experts_dims import X
from .experts_tiling import S
from .few_tokens import MOST, int4_sums
from .int4_groups import GROUP, WORDS, row_sums


class F(tl.Element):
    """bf16 or f16"""


@tl.kernel
def experts_matmul_few_int4(
    a: tl.In[E, Literal["S * BM"], K],
    tiles: tl.In[tl.i32, S],
    b: tl.In[tl.u32, X, N, Literal["K // 8"]],
    b_scales: tl.In[F, X, Literal["K // 128"], N],
    b_zeros: tl.In[tl.u8, X, Literal["K // 128"], N],
    out: tl.Out[E, Literal["S * BM"], N],
    *,
    E: tl.Const,
    F: tl.Const,
    BM: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
):
    """`out[r] = a[r] @ w.T` for rows of tile m with the weights w of its expert `tiles[m]`, those of `int4_groups`, in f32,
    rounded once; 0 where that is X, whose tiles read no weights. A block has ROWS outputs of a tile, and SPLIT groups side by
    side."""
    assert BM <= MOST
    tl.requires(K % (SPLIT * GROUP) == 0 and N % ROWS == 0 and S <= 8388608 and X <= 65536 and K <= 1048576)
    tl.values(tiles, 0, X + 1)
    columns = N // ROWS
    tl.grid(S * columns)
    tl.requires(S * columns <= 2147483647)
    m, n = tl.bid(0) // columns, tl.bid(0) % columns
    e = tl.load(tiles, m)
    acc = tl.zeros((SPLIT, ROWS, BM), tl.f32)
    for k in range(K // (SPLIT * GROUP) * min(X - e, 1)):
        x = tl.load(a, (m, k), shape=(BM, SPLIT * GROUP))
        s = tl.load(b_scales, (e, k, n), shape=(1, SPLIT, ROWS)).reshape((SPLIT, ROWS))
        z = tl.load(b_zeros, (e, k, n), shape=(1, SPLIT, ROWS)).reshape((SPLIT, ROWS))
        words = tl.load(b, (e, n, k), shape=(1, ROWS, SPLIT * WORDS)).reshape((ROWS, SPLIT * WORDS))
        acc += int4_sums(x, words, s, z, BM, ROWS, SPLIT, E)
    tl.store(out, (m, n), tl.astype(row_sums(acc, E).T, E))
