"""Gradient of attention with respect to queries (Dao, FlashAttention-2, 2023, algorithm 2)."""

from typing import Literal

from attention_parts import HKV, KB, KH, KS, LOG2E, OB, OG, OH, OT, QB, QG, QH, QT, VB, VH, VS, B, D, E, G, S, T

import tilec as tl


@tl.kernel
def attention_backward_q(
    q: tl.In[E, B, T, HKV, G, D, tl.Strides[QB, QT, QH, QG, Literal[1]]],
    k: tl.In[E, B, S, HKV, D, tl.Strides[KB, KS, KH, Literal[1]]],
    v: tl.In[E, B, S, HKV, D, tl.Strides[VB, VS, VH, Literal[1]]],
    dout: tl.In[E, B, T, HKV, G, D, tl.Strides[OB, OT, OH, OG, Literal[1]]],
    rows: tl.In[tl.f32, B, HKV, G, Literal[2], Literal["(T + 255) // 128 * 128"]],
    dq: tl.Out[E, B, T, HKV, G, D],
    before: tl.i32,
    after: tl.i32,
    scale: tl.f32,
    *,
    E: tl.Const,
    D: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
):
    """A block has BM queries of a head, and goes through the keys, BN at a time.

    `rows` are those of `attention_rows`. Tiles with keys past the last one are masked: exponentials of these have no bound.
    """
    tl.requires(T <= 16777216, S <= 16777216)
    tl.requires(before >= 0, before <= 16777216, after >= 0, after <= 16777216)
    tl.requires(QB % 8 == 0 and QT % 8 == 0 and QH % 8 == 0 and QG % 8 == 0)
    tl.requires(OB % 8 == 0 and OT % 8 == 0 and OH % 8 == 0 and OG % 8 == 0)
    tl.requires(KB % 8 == 0 and KS % 8 == 0 and KH % 8 == 0 and VB % 8 == 0 and VS % 8 == 0 and VH % 8 == 0)
    tl.grid(HKV * G, tl.cdiv(T, BM), B)
    m, b = tl.cdiv(T, BM) - 1 - tl.bid(1), tl.bid(2)
    head, member = tl.bid(0) // G, tl.bid(0) % G
    query = tl.reshape(tl.load(q, (b, m, head, member, 0), shape=(1, BM, 1, 1, D), pad=0), (BM, D))
    grad = tl.reshape(tl.load(dout, (b, m, head, member, 0), shape=(1, BM, 1, 1, D), pad=0), (BM, D))
    log2_scale = scale * LOG2E
    log_sum = tl.reshape(tl.load(rows, (b, head, member, 0, m), shape=(1, 1, 1, 1, BM)), (BM, 1))
    own = tl.reshape(tl.load(rows, (b, head, member, 1, m), shape=(1, 1, 1, 1, BM)), (BM, 1))
    acc = tl.zeros((BM, D), tl.f32)
    position = m * BM + S - T
    begin = max(position - before, 0) // BN
    inside = max(position + BM - 1 - before, 0)
    whole = min(position + after + 1, S) // BN
    for j in range(begin, tl.cdiv(max(min(position + BM + after, S), 0), BN)):
        keys = tl.reshape(tl.load(k, (b, j, head, 0), shape=(1, BN, 1, D), pad=0), (BN, D))
        values = tl.reshape(tl.load(v, (b, j, head, 0), shape=(1, BN, 1, D), pad=0), (BN, D))
        s = tl.mma(query, keys.T, tl.zeros((BM, BN), tl.f32))
        dp = tl.mma(grad, values.T, tl.zeros((BM, BN), tl.f32))
        p = tl.exp2(s * log2_scale + log_sum, fast=True)
        if j * BN < inside or j >= whole:
            row = tl.arange(BM)[:, None]
            distance = (j * BN - position + tl.arange(BN))[None, :] - row
            p = tl.where((distance >= -before) & (distance <= tl.minimum(after, S - 1 - position - row)), p, 0.0)
        acc = tl.mma(tl.astype(p * (dp + own), E), keys, acc)
    tl.store(dq, (b, m, head, member, 0), tl.reshape(tl.astype(acc * scale, E), (1, BM, 1, 1, D)), mask=True)
