"""`experts_matmul_few` with FP8 weights: codes are converted in registers, once for all rows of a tile (`few_tokens`)."""

from typing import Literal

import tilec as tl

from .dims import E, K, N
from .experts_dims import X
from .experts_tiling import S
from .few_tokens import MOST, fp8_sums
from .fp8_blocks import SQUARE


@tl.kernel
def experts_matmul_few_fp8(
    a: tl.In[E, Literal["S * BM"], K],
    tiles: tl.In[tl.i32, S],
    b: tl.In[tl.f8e4m3, X, N, K],
    b_scales: tl.In[tl.f32, X, Literal["N // 128"], Literal["K // 128"]],
    out: tl.Out[E, Literal["S * BM"], N],
    *,
    E: tl.Const,
    BM: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
):
    """`out[r] = a[r] @ w.T` for rows of tile m with the weights w of its expert `tiles[m]`, those of `matmul_few_fp8`, in f32,
    rounded once; 0 where that is X, whose tiles read no weights. A block has ROWS outputs of a tile, and SPLIT sums of 128
    inputs side by side."""
    assert SQUARE % ROWS == 0
    assert BM <= MOST
    tl.requires(K % (SPLIT * SQUARE) == 0 and N % SQUARE == 0 and S <= 8388608 and X <= 65536 and K <= 1048576)
    tl.values(tiles, 0, X + 1)
    columns = N // ROWS
    tl.grid(S * columns)
    tl.requires(S * columns <= 2147483647)
    m, n = tl.bid(0) // columns, tl.bid(0) % columns
    e = tl.load(tiles, m)
    acc = tl.zeros((SPLIT, ROWS, BM), tl.f32)
    for k in range(K // (SPLIT * SQUARE) * min(X - e, 1)):
        x = tl.load(a, (m, k), shape=(BM, SPLIT * SQUARE))
        s = tl.load(b_scales, (e, n // (SQUARE // ROWS), k), shape=(1, 1, SPLIT)).reshape((1, SPLIT))
        w = tl.load(b, (e, n, k), shape=(1, ROWS, SPLIT * SQUARE)).reshape((ROWS, SPLIT * SQUARE))
        acc += fp8_sums(x, w, s, BM, ROWS, SPLIT)
    tl.store(out, (m, n), tl.astype(tl.sum(acc, axis=0).T, E))
