"""A linear layer whose weights have four bits, with a scale and a zero for each group of 128 inputs (Frantar et al., GPTQ,
2022)."""

from typing import Literal

import tilec as tl

GROUP = 128
"""Inputs of a group."""


class E(tl.Element):
    """bf16 or f16"""


class S(tl.Element):
    """bf16, f16 or f32"""


class M(tl.Dim):
    """rows"""


class N(tl.Dim):
    """outputs"""


class K(tl.Dim):
    """inputs"""


@tl.kernel
def int4_matmul(
    x: tl.In[E, M, K],
    packed: tl.In[tl.i32, Literal["K // 8"], N],
    scales: tl.In[S, Literal["K // GROUP"], N],
    zeros: tl.In[tl.i32, Literal["K // GROUP"], Literal["N // 8"]],
    out: tl.Out[E, M, N],
    *,
    E: tl.Const,
    S: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
):
    """`out = x @ weights` in f32, rounded once, where `weights[k, n] = (q[k, n] - z[k // 128, n]) * scales[k // 128, n]`.

    Bits 4 * i to 4 * i + 3 of `packed[j, n]` are `q[8 * j + i, n]`, and of `zeros[g, j]` they are `z[g, 8 * j + i]`.
    Differences are exact in the dtype of `x`; a group's sum is scaled in f32."""
    tl.requires(K % GROUP == 0, N % 8 == 0)
    tl.grid(tl.cdiv(M, BM), tl.cdiv(N, BN))
    m, n = tl.bid(0), tl.bid(1)
    column = n * BN + tl.arange(BN)
    total = tl.zeros((BM, BN), tl.f32)
    for g in range(K // GROUP):
        a = tl.load(x, (m, g), shape=(BM, GROUP), pad=0)
        words = tl.load(packed, (g, n), shape=(GROUP // 8, BN), pad=0)
        zero = (tl.gather(zeros, (g, column // 8), pad=0) >> column % 8 * 4) & 15
        q = (words[:, None, :] >> (tl.arange(8) * 4)[None, :, None]) & 15
        b = (q - zero[None, None, :]).astype(E).reshape((GROUP, BN))
        part = tl.mma(a, b, tl.zeros((BM, BN), tl.f32))
        total = total + part * tl.load(scales, (g, n), shape=(1, BN), pad=0).astype(tl.f32)
    tl.store(out, (m, n), total.astype(E), mask=True)
