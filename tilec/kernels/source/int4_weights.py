"""Weights of four bits, with a scale and a zero for each group of 128 inputs, as numbers of 16 bits (Frantar et al., GPTQ,
2022)."""

from typing import Literal

from int4_matmul import GROUP, E, K, N, S

import tilec as tl


@tl.kernel
def int4_weights(
    packed: tl.In[tl.i32, Literal["K // 8"], N],
    scales: tl.In[S, Literal["K // GROUP"], N],
    zeros: tl.In[tl.i32, Literal["K // GROUP"], Literal["N // 8"]],
    weights: tl.Out[E, K, N],
    *,
    E: tl.Const,
    S: tl.Const,
    BN: tl.Const,
):
    """`weights[k, n] = (q[k, n] - z[k // 128, n]) * scales[k // 128, n]` in f32, rounded to E; the rest as of `int4_matmul`."""
    tl.requires(K % GROUP == 0, N % 8 == 0)
    tl.grid(K // GROUP, tl.cdiv(N, BN))
    g, n = tl.bid(0), tl.bid(1)
    column = n * BN + tl.arange(BN)
    words = tl.load(packed, (g, n), shape=(GROUP // 8, BN), pad=0)
    zero = (tl.gather(zeros, (g, column // 8), pad=0) >> column % 8 * 4) & 15
    scale = tl.load(scales, (g, n), shape=(1, BN), pad=0).astype(tl.f32)
    q = (words[:, None, :] >> (tl.arange(8) * 4)[None, :, None]) & 15
    weight = (q - zero[None, None, :]).astype(tl.f32) * scale[None, :, :]
    tl.store(weights, (g, n), weight.astype(E).reshape((GROUP, BN)), mask=True)
