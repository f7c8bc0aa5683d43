"""Linear layer at prefill with weights and activations of eight bits: `out = a @ b.T` on tensor cores, with scales of blocks
(DeepSeek-AI, DeepSeek-V3, 2024, section 3.3)."""

from typing import Literal

import tilec as tl

from .dims import E, K, M, N
from .scaled_products import scaled


@tl.kernel
def matmul_fp8(
    a: tl.In[tl.f8e4m3, M, K],
    a_scales: tl.In[tl.f32, Literal["K // 128"], M],
    b: tl.In[tl.f8e4m3, N, K],
    b_scales: tl.In[tl.f32, Literal["N // 128"], Literal["K // 128"]],
    out: tl.Out[E, M, N],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    PART: tl.Const,
    AHEAD: tl.Const,
    LATE: tl.Const,
    GROUP: tl.Const,
):
    """`out[m, n]` is the sum over blocks i of 128 inputs of `a[m, i] @ b[n, i]` times `a_scales[i, m] * b_scales[n // 128, i]`,
    in f32, rounded once. Tensor cores of sm_90 keep about 14 bits of a sum of products of eight bits. So each block has a sum
    of its own, which is added to that of all in f32.

    An iteration multiplies AHEAD blocks; of two, the first is added while the second is multiplied, or, with LATE = 1, each
    while the next one is, across iterations too. PART columns of a tile share a scale; PART divides 128 and BN. Tiles have the
    order of those of `matmul`."""
    assert 128 % PART == 0 and BN % PART == 0 and LATE < AHEAD
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
    total, pending = tl.zeros((BM, BN), tl.f32), tl.zeros((BM, BN), tl.f32)
    for step in range(tl.cdiv(K // 128, AHEAD)):
        scales = ()
        for i in tl.static_range(AHEAD):
            block = step * AHEAD + i - LATE
            of_rows = tl.load(a_scales, (block, m), shape=(1, BM), pad=0)
            scales = (*scales, (of_rows, tl.gather(b_scales, (parts, block), pad=0)))
        products = (pending,) if LATE else ()
        for i in tl.static_range(AHEAD):
            block = step * AHEAD + i
            x = tl.load(a, (m, block), shape=(BM, 128), pad=0)
            y = tl.load(b, (n, block), shape=(BN, 128), pad=0)
            products = (*products, tl.mma(x, y.T, tl.zeros((BM, BN), tl.f32)))
            if LATE:
                total += scaled(products[i], scales[i], BM, BN, PART)
        if LATE:
            pending = products[AHEAD]
        else:
            for i in tl.static_range(AHEAD):
                total += scaled(products[i], scales[i], BM, BN, PART)
    if LATE:
        last = tl.cdiv(K // 128, AHEAD) * AHEAD - 1
        of_rows = tl.load(a_scales, (last, m), shape=(1, BM), pad=0)
        scales = (of_rows, tl.gather(b_scales, (parts, last), pad=0))
        total += scaled(pending, scales, BM, BN, PART)
    tl.store(out, (m, n), tl.astype(total, E), mask=True)
