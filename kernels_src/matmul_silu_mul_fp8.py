"""First half of a SwiGLU layer at prefill with weights and activations of eight bits: gate and up projection in one product on
tensor cores, combined where it is made (Shazeer, GLU Variants, 2020)."""

from typing import Literal

import tilec as tl

from .dims import E, I, K, M
from .scaled_products import scaled


@tl.kernel
def matmul_silu_mul_fp8(
    a: tl.In[tl.f8e4m3, M, K],
    a_scales: tl.In[tl.f32, Literal["K // 128"], M],
    b: tl.In[tl.f8e4m3, Literal[2], I, K],
    b_scales: tl.In[tl.f32, Literal[2], Literal["I // 128"], Literal["K // 128"]],
    out: tl.Out[E, M, I],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    PART: tl.Const,
    AHEAD: tl.Const,
    LATE: tl.Const,
    GROUP: tl.Const,
):
    """`out = silu(gate) * up` in f32, rounded once, where `gate` and `up` are the products with `b[0]` and `b[1]`. Scales, sums
    and the order of tiles are those of `matmul_fp8`."""
    assert 128 % PART == 0 and BN % PART == 0 and LATE < AHEAD
    tl.requires(K % 128 == 0 and I % 128 == 0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(I, BN)
    tl.grid(rows * columns)
    tl.requires(rows * columns <= 2147483647)
    t = tl.bid(0)
    first = t // (GROUP * columns) * GROUP
    height = min(rows - first, GROUP)
    m = first + t % (GROUP * columns) % height
    n = t % (GROUP * columns) // height
    of_half = BN // PART
    half, parts = tl.arange(2 * of_half) // of_half, (n * BN + tl.arange(2 * of_half) % of_half * PART) // 128
    total, pending = tl.zeros((BM, 2 * BN), tl.f32), tl.zeros((BM, 2 * BN), tl.f32)
    for step in range(tl.cdiv(K // 128, AHEAD)):
        scales = ()
        for i in tl.static_range(AHEAD):
            block = step * AHEAD + i - LATE
            of_rows = tl.load(a_scales, (block, m), shape=(1, BM), pad=0)
            scales = (*scales, (of_rows, tl.gather(b_scales, (half, parts, block), pad=0)))
        products = (pending,) if LATE else ()
        for i in tl.static_range(AHEAD):
            block = step * AHEAD + i
            x = tl.load(a, (m, block), shape=(BM, 128), pad=0)
            y = tl.reshape(tl.load(b, (0, n, block), shape=(2, BN, 128), pad=0), (2 * BN, 128))
            products = (*products, tl.mma(x, y.T, tl.zeros((BM, 2 * BN), tl.f32)))
            if LATE:
                total += scaled(products[i], scales[i], BM, 2 * BN, PART)
        if LATE:
            pending = products[AHEAD]
        else:
            for i in tl.static_range(AHEAD):
                total += scaled(products[i], scales[i], BM, 2 * BN, PART)
    if LATE:
        last = tl.cdiv(K // 128, AHEAD) * AHEAD - 1
        of_rows = tl.load(a_scales, (last, m), shape=(1, BM), pad=0)
        scales = (of_rows, tl.gather(b_scales, (half, parts, last), pad=0))
        total += scaled(pending, scales, BM, 2 * BN, PART)
    both = tl.reshape(total, (BM, 2, BN))
    is_gate = (tl.arange(2) == 0)[None, :, None]
    gate, up = tl.sum(tl.where(is_gate, both, 0.0), axis=1), tl.sum(tl.where(is_gate, 0.0, both), axis=1)
    tl.store(out, (m, n), tl.astype(gate * tl.sigmoid(gate, fast=True) * up, E), mask=True)
