"""`experts_matmul` of INT4 weights, which are converted in registers, once for all rows of a tile."""

from typing import Literal

import tilec as tl

from .dims import E, K, N
from .experts_dims import X
from .experts_tiling import S
from .int4_groups import GROUP, WORDS
from .int4_rows import codes_in_order


class F(tl.Element):
    """bf16 or f16"""


@tl.kernel
def experts_matmul_int4(
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
    BN: tl.Const,
    RUN: tl.Const,
):
    """`out[r] = a[r] @ w.T` for rows of tile m with the weights w of its expert `tiles[m]`, those of `int4_groups`, in f32,
    rounded once; 0 where that is X, whose tiles multiply nothing. Blocks walk tiles as those of `matmul` do, RUN at a time."""
    tl.requires(K % GROUP == 0 and N % BN == 0 and S <= 8388608 and X <= 65536 and K <= 1048576)
    tl.values(tiles, 0, X + 1)
    columns = N // BN
    tl.grid(S * columns)
    tl.requires(S * columns <= 2147483647)
    t = tl.bid(0)
    first = t // (RUN * columns) * RUN
    height = min(S - first, RUN)
    m = first + t % (RUN * columns) % height
    n = t % (RUN * columns) // height
    e = tl.load(tiles, m)
    total = tl.zeros((BM, BN), tl.f32)
    for k in range(K // GROUP * min(X - e, 1)):
        x = tl.load(a, (m, k), shape=(BM, GROUP))
        s = tl.load(b_scales, (e, k, n), shape=(1, 1, BN)).reshape((1, BN)).astype(tl.f32)
        z = tl.load(b_zeros, (e, k, n), shape=(1, 1, BN)).reshape((BN,))
        words = tl.load(b, (e, n, k), shape=(1, BN, WORDS)).reshape((BN, WORDS))
        w = codes_in_order(words, z, BN, E)
        total = total + tl.mma(x, w.T, tl.zeros((BM, BN), tl.f32)) * s
    tl.store(out, (m, n), tl.astype(total * (512.0 if E == tl.f16 else 64.0), E))
