"""Linear layer at prefill with weights and activations of eight bits: `out = x @ w.T` on tensor cores, with scales of blocks
(DeepSeek-AI, DeepSeek-V3, 2024, section 3.3)."""

from typing import Literal

import tilec as tl

from .dims import E, K, M, N


@tl.kernel
def matmul_fp8(
    x: tl.In[tl.f8e4m3, M, K],
    x_scales: tl.In[tl.f32, Literal["K // 128"], M],
    w: tl.In[tl.f8e4m3, N, K],
    w_scales: tl.In[tl.f32, Literal["N // 128"], Literal["K // 128"]],
    out: tl.Out[E, M, N],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    PART: tl.Const,
    AHEAD: tl.Const,
    GROUP: tl.Const,
):
    """`out[m, n]` is the sum over blocks b of 128 inputs of `x[m, b] @ w[n, b]` times `x_scales[b, m] * w_scales[n // 128, b]`,
    in f32, rounded once. Tensor cores of sm_90 keep about 14 bits of a sum of products of eight bits. So each block has a sum
    of its own, which is added to that of all in f32. An iteration multiplies AHEAD blocks, and adds one during the next.

    PART columns of a tile share a scale; PART divides 128 and BN. Tiles have the order of those of `matmul`."""
    assert 128 % PART == 0 and BN % PART == 0
    tl.requires(K % 128 == 0 and N % 128 == 0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    tl.grid(rows * columns)
    tl.requires(rows * columns <= 2147483647)
    t = tl.bid(0)
    first = t // (GROUP * columns) * GROUP
    height = min(rows - first, GROUP)
    m = first + t % (GROUP * columns) % height
    n = t % (GROUP * columns) // height
    parts = (n * BN + tl.arange(BN // PART) * PART) // 128
    total = tl.zeros((BM, BN), tl.f32)
    for step in range(tl.cdiv(K // 128, AHEAD)):
        scales = ()
        for i in tl.static_range(AHEAD):
            of_rows = tl.load(x_scales, (step * AHEAD + i, m), shape=(1, BM), pad=0)
            of_parts = tl.gather(w_scales, (parts, step * AHEAD + i), pad=0)
            scales = (*scales, (of_rows, of_parts))
        products = ()
        for i in tl.static_range(AHEAD):
            a = tl.load(x, (m, step * AHEAD + i), shape=(BM, 128), pad=0)
            b = tl.load(w, (n, step * AHEAD + i), shape=(BN, 128), pad=0)
            products = (*products, tl.mma(a, b.T, tl.zeros((BM, BN), tl.f32)))
        for i in tl.static_range(AHEAD):
            of_rows, of_parts = scales[i]
            scale = tl.reshape(of_rows, (BM, 1, 1)) * of_parts[None, :, None]
            total += tl.reshape(tl.reshape(products[i], (BM, BN // PART, PART)) * scale, (BM, BN))
    tl.store(out, (m, n), tl.astype(total, E), mask=True)
