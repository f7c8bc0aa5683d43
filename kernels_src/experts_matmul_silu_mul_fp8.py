"""`experts_matmul_silu_mul` of weights and activations of eight bits, with scales of blocks (DeepSeek-AI, DeepSeek-V3, 2024,
section 3.3)."""

from typing import Literal

import tilec as tl

from .dims import E, I, K
from .experts_dims import X
from .experts_tiling import S
from .scaled_products import scaled


@tl.kernel
def experts_matmul_silu_mul_fp8(
    a: tl.In[tl.f8e4m3, Literal["S * BM"], K],
    a_scales: tl.In[tl.f32, Literal["K // 128"], Literal["S * BM"]],
    tiles: tl.In[tl.i32, S],
    b: tl.In[tl.f8e4m3, X, Literal[2], I, K],
    b_scales: tl.In[tl.f32, X, Literal[2], Literal["I // 128"], Literal["K // 128"]],
    out: tl.Out[E, Literal["S * BM"], I],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    PART: tl.Const,
    GROUP: tl.Const,
):
    """`out[r] = silu(gate) * up` in f32, rounded once, where `gate` and `up` are the products of row r with `b[e, 0]` and
    `b[e, 1]` of expert `e = tiles[m]`, for rows of tile m; 0 where e is X, whose tiles multiply nothing. Scales, sums and the
    order of tiles are those of `experts_matmul_fp8`."""
    assert 128 % PART == 0 and BN % PART == 0
    tl.requires(K % 128 == 0, I % 128 == 0, S <= 8388608, X <= 65536, K <= 1048576)
    tl.values(tiles, 0, X + 1)
    columns = tl.cdiv(I, BN)
    tl.grid(S * columns)
    tl.requires(S * columns <= 2147483647)
    t = tl.bid(0)
    first = t // (GROUP * columns) * GROUP
    height = min(S - first, GROUP)
    m = first + t % (GROUP * columns) % height
    n = t % (GROUP * columns) // height
    e = tl.load(tiles, m)
    of_half = BN // PART
    half, parts = tl.arange(2 * of_half) // of_half, (n * BN + tl.arange(2 * of_half) % of_half * PART) // 128
    total = tl.zeros((BM, 2 * BN), tl.f32)
    for k in range(K // 128 * min(X - e, 1)):
        scales = (tl.load(a_scales, (k, m), shape=(1, BM)), tl.gather(b_scales, (e, half, parts, k), pad=0))
        x = tl.load(a, (m, k), shape=(BM, 128))
        y = tl.reshape(tl.load(b, (e, 0, n, k), shape=(1, 2, BN, 128), pad=0), (2 * BN, 128))
        total += scaled(tl.mma(x, y.T, tl.zeros((BM, 2 * BN), tl.f32)), scales, BM, 2 * BN, PART)
    both = tl.reshape(total, (BM, 2, BN))
    is_gate = (tl.arange(2) == 0)[None, :, None]
    gate, up = tl.sum(tl.where(is_gate, both, 0.0), axis=1), tl.sum(tl.where(is_gate, 0.0, both), axis=1)
    tl.store(out, (m, n), tl.astype(gate * tl.sigmoid(gate, fast=True) * up, E), mask=True)
