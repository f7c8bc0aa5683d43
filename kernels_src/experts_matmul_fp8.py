"""`experts_matmul` of weights and activations of eight bits, with scales of blocks (DeepSeek-AI, DeepSeek-V3, 2024,
section 3.3)."""

from typing import Literal

import tilec as tl

from .dims import E, K, N
from .experts_dims import X
from .experts_tiling import S
from .scaled_products import scaled


@tl.kernel
def experts_matmul_fp8(
    a: tl.In[tl.f8e4m3, Literal["S * BM"], K],
    a_scales: tl.In[tl.f32, Literal["K // 128"], Literal["S * BM"]],
    tiles: tl.In[tl.i32, S],
    b: tl.In[tl.f8e4m3, X, N, K],
    b_scales: tl.In[tl.f32, X, Literal["N // 128"], Literal["K // 128"]],
    out: tl.Out[E, Literal["S * BM"], N],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    PART: tl.Const,
    GROUP: tl.Const,
):
    """`out[r]` is the sum of `matmul_fp8` of row r and the weights of expert `e = tiles[m]`, for rows of tile m, rounded once;
    0 where e is X, whose tiles multiply nothing. PART columns of a tile share a scale; PART divides 128 and BN. Blocks walk
    tiles as those of `matmul` do."""
    assert 128 % PART == 0 and BN % PART == 0
    tl.requires(K % 128 == 0, N % 128 == 0, S <= 8388608, X <= 65536, K <= 1048576)
    tl.values(tiles, 0, X + 1)
    columns = tl.cdiv(N, BN)
    tl.grid(S * columns)
    tl.requires(S * columns <= 2147483647)
    t = tl.bid(0)
    first = t // (GROUP * columns) * GROUP
    height = min(S - first, GROUP)
    m = first + t % (GROUP * columns) % height
    n = t % (GROUP * columns) // height
    e = tl.load(tiles, m)
    parts = (n * BN + tl.arange(BN // PART) * PART) // 128
    total = tl.zeros((BM, BN), tl.f32)
    for k in range(K // 128 * min(X - e, 1)):
        scales = (tl.load(a_scales, (k, m), shape=(1, BM)), tl.gather(b_scales, (e, parts, k), pad=0))
        x = tl.load(a, (m, k), shape=(BM, 128))
        y = tl.reshape(tl.load(b, (e, n, k), shape=(1, BN, 128), pad=0), (BN, 128))
        total += scaled(tl.mma(x, y.T, tl.zeros((BM, BN), tl.f32)), scales, BM, BN, PART)
    tl.store(out, (m, n), tl.astype(total, E), mask=True)
