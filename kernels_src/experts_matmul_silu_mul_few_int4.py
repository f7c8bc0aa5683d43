"""`experts_matmul_silu_mul_few` with INT4 weights, of `experts_matmul_few_int4`."""

from typing import Literal

import tilec as tl

from .dims import I2, E, I, K
from .experts_dims import X
from .experts_tiling import S
from .few_tokens import MOST, int4_sums
from .int4_groups import GROUP, WORDS, row_sums


class F(tl.Element):
    """bf16 or f16"""


@tl.kernel
def experts_matmul_silu_mul_few_int4(
    a: tl.In[E, Literal["S * BM"], K],
    tiles: tl.In[tl.i32, S],
    b: tl.In[tl.u32, X, I2, Literal["K // 8"]],
    b_scales: tl.In[F, X, Literal["K // 128"], I2],
    b_zeros: tl.In[tl.u8, X, Literal["K // 128"], I2],
    out: tl.Out[E, Literal["S * BM"], I],
    *,
    E: tl.Const,
    F: tl.Const,
    BM: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
):
    """`out[r] = silu(a[r] @ w[:I].T) * (a[r] @ w[I:].T)` for rows of tile m, with the weights w of its expert `tiles[m]`, in
    f32, rounded once; 0 where that is X, whose tiles read no weights. A block has ROWS outputs of a tile."""
    assert BM <= MOST
    tl.requires(2 * I == I2 and K % (SPLIT * GROUP) == 0 and I % ROWS == 0)
    tl.requires(S <= 8388608 and X <= 65536 and K <= 1048576)
    tl.values(tiles, 0, X + 1)
    columns = I // ROWS
    tl.grid(S * columns)
    tl.requires(S * columns <= 2147483647)
    m, n = tl.bid(0) // columns, tl.bid(0) % columns
    e = tl.load(tiles, m)
    up_at = I + n * ROWS
    gate, up = tl.zeros((SPLIT, ROWS, BM), tl.f32), tl.zeros((SPLIT, ROWS, BM), tl.f32)
    for k in range(K // (SPLIT * GROUP) * min(X - e, 1)):
        x = tl.load(a, (m, k), shape=(BM, SPLIT * GROUP))
        s = tl.load(b_scales, (e, k, n), shape=(1, SPLIT, ROWS)).reshape((SPLIT, ROWS))
        z = tl.load(b_zeros, (e, k, n), shape=(1, SPLIT, ROWS)).reshape((SPLIT, ROWS))
        words = tl.load(b, (e, n, k), shape=(1, ROWS, SPLIT * WORDS)).reshape((ROWS, SPLIT * WORDS))
        gate += int4_sums(x, words, s, z, BM, ROWS, SPLIT, E)
        s = tl.load(b_scales, offset=(e, k * SPLIT, up_at), shape=(1, SPLIT, ROWS)).reshape((SPLIT, ROWS))
        z = tl.load(b_zeros, offset=(e, k * SPLIT, up_at), shape=(1, SPLIT, ROWS)).reshape((SPLIT, ROWS))
        words = tl.load(b, offset=(e, up_at, k * SPLIT * WORDS), shape=(1, ROWS, SPLIT * WORDS))
        up += int4_sums(x, words.reshape((ROWS, SPLIT * WORDS)), s, z, BM, ROWS, SPLIT, E)
    left, right = row_sums(gate, E), row_sums(up, E)
    tl.store(out, (m, n), tl.astype((left * tl.sigmoid(left, fast=True) * right).T, E))
