"""`experts_matmul` where each expert has a small M: with the weights as left operand (`matmul_few`)."""

from typing import Literal

import tilec as tl

from .dims import E, K, N
from .experts_dims import X
from .experts_tiling import S


@tl.kernel
def experts_matmul_few(
    a: tl.In[E, Literal["S * BM"], K],
    tiles: tl.In[tl.i32, S],
    b: tl.In[E, X, N, K],
    out: tl.Out[E, Literal["S * BM"], N],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    """`out[r] = a[r] @ b[e].T` for rows of tile m of expert `e = tiles[m]`, in f32, rounded once; 0 where e is X, whose tiles
    multiply nothing. A block has BN outputs of a tile."""
    tl.requires(K % 8 == 0, N % 8 == 0, S <= 8388608, X <= 65536, K <= 1048576)
    tl.values(tiles, 0, X + 1)
    columns = tl.cdiv(N, BN)
    tl.grid(S * columns)
    tl.requires(S * columns <= 2147483647)
    m, n = tl.bid(0) // columns, tl.bid(0) % columns
    e = tl.load(tiles, m)
    acc = tl.zeros((BN, BM), tl.f32)
    for k in range(tl.cdiv(K, BK) * min(X - e, 1)):
        x = tl.load(a, (m, k), shape=(BM, BK), pad=0)
        y = tl.reshape(tl.load(b, (e, n, k), shape=(1, BN, BK), pad=0), (BN, BK))
        acc = tl.mma(y, x.T, acc)
    tl.store(out, (m, n), tl.astype(acc.T, E), mask=True)
