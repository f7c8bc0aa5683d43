"""A linear layer whose weights and inputs have eight bits, with scales of blocks (DeepSeek-AI, DeepSeek-V3, 2024)."""

from typing import Literal

import tilec as tl

BLOCK = 128
"""Outputs and inputs of a block of weights."""


class E(tl.Element):
    """f8e4m3 or f8e5m2"""


class M(tl.Dim):
    """rows"""


class N(tl.Dim):
    """outputs"""


class K(tl.Dim):
    """inputs"""


@tl.kernel
def fp8_matmul(
    x: tl.In[E, M, K],
    weight: tl.In[E, N, K],
    x_scales: tl.In[tl.f32, M, Literal["(K + BLOCK - 1) // BLOCK"]],
    weight_scales: tl.In[tl.f32, Literal["(N + BLOCK - 1) // BLOCK"], Literal["(K + BLOCK - 1) // BLOCK"]],
    out: tl.Out[tl.bf16, M, N],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
):
    """`out[m, n]` is the sum over blocks b of BLOCK inputs of `x[m, b] @ weight[n, b]` times `x_scales[m, b]` and
    `weight_scales[n // BLOCK, b]`, in f32, rounded once.

    Both operands and each product of two are exact in f32; sums of a block are rounded there."""
    assert BLOCK % BN == 0
    tl.requires(K % 16 == 0, N % 8 == 0, K <= 1073741824, N <= 1073741824)
    tl.grid(tl.cdiv(M, BM), tl.cdiv(N, BN))
    m, n = tl.bid(0), tl.bid(1)
    total = tl.zeros((BM, BN), tl.f32)
    for b in range(tl.cdiv(K, BLOCK)):
        a = tl.load(x, (m, b), shape=(BM, BLOCK), pad=0)
        w = tl.load(weight, (n, b), shape=(BN, BLOCK), pad=0)
        part = tl.mma(a, w.T, tl.zeros((BM, BN), tl.f32))
        rows = tl.load(x_scales, (m, b), shape=(BM, 1), pad=0)
        total = total + part * rows * tl.load(weight_scales, (n // (BLOCK // BN), b))
    tl.store(out, (m, n), total.astype(tl.bf16), mask=True)
