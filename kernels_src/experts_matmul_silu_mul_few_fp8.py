"""`experts_matmul_silu_mul_few` with FP8 weights, of `experts_matmul_few_fp8`."""

from typing import Literal

import tilec as tl

from .dims import I2, E, I, K
from .experts_dims import X
from .experts_tiling import S
from .few_tokens import MOST, fp8_sums
from .fp8_blocks import SQUARE


@tl.kernel
def experts_matmul_silu_mul_few_fp8(
    a: tl.In[E, Literal["S * BM"], K],
    tiles: tl.In[tl.i32, S],
    b: tl.In[tl.f8e4m3, X, I2, K],
    b_scales: tl.In[tl.f32, X, Literal["I2 // 128"], Literal["K // 128"]],
    out: tl.Out[E, Literal["S * BM"], I],
    *,
    E: tl.Const,
    BM: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
):
    """`out[r] = silu(a[r] @ w[:I].T) * (a[r] @ w[I:].T)` for rows of tile m, with the weights w of its expert `tiles[m]`, in
    f32, rounded once; 0 where that is X, whose tiles read no weights. A block has ROWS outputs of a tile."""
    assert SQUARE % ROWS == 0
    assert BM <= MOST
    tl.requires(2 * I == I2 and K % (SPLIT * SQUARE) == 0 and I % SQUARE == 0)
    tl.requires(S <= 8388608 and X <= 65536 and K <= 1048576)
    tl.values(tiles, 0, X + 1)
    columns = I // ROWS
    tl.grid(S * columns)
    tl.requires(S * columns <= 2147483647)
    m, n = tl.bid(0) // columns, tl.bid(0) % columns
    e = tl.load(tiles, m)
    gate, up = tl.zeros((SPLIT, ROWS, BM), tl.f32), tl.zeros((SPLIT, ROWS, BM), tl.f32)
    for k in range(K // (SPLIT * SQUARE) * min(X - e, 1)):
        x = tl.load(a, (m, k), shape=(BM, SPLIT * SQUARE))
        w = tl.load(b, (e, n, k), shape=(1, ROWS, SPLIT * SQUARE)).reshape((ROWS, SPLIT * SQUARE))
        u = tl.load(b, offset=(e, I + n * ROWS, k * SPLIT * SQUARE), shape=(1, ROWS, SPLIT * SQUARE))
        s = tl.load(b_scales, (e, n // (SQUARE // ROWS), k), shape=(1, 1, SPLIT)).reshape((1, SPLIT))
        t = tl.load(b_scales, offset=(e, I // SQUARE + n // (SQUARE // ROWS), k * SPLIT), shape=(1, 1, SPLIT))
        gate += fp8_sums(x, w, s, BM, ROWS, SPLIT)
        up += fp8_sums(x, u.reshape((ROWS, SPLIT * SQUARE)), t.reshape((1, SPLIT)), BM, ROWS, SPLIT)
    left, right = tl.sum(gate, axis=0), tl.sum(up, axis=0)
    tl.store(out, (m, n), tl.astype((left * tl.sigmoid(left, fast=True) * right).T, E))
