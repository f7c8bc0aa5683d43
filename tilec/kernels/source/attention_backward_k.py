"""Gradient of attention with respect to keys (Dao, FlashAttention-2, 2023, algorithm 2)."""

from typing import Literal

from attention_parts import HKV, KB, KH, KS, LOG2E, OB, OG, OH, OT, QB, QG, QH, QT, VB, VH, VS, B, D, E, G, S, T

import tilec as tl


@tl.kernel
def attention_backward_k(
    q: tl.In[E, B, T, HKV, G, D, tl.Strides[QB, QT, QH, QG, Literal[1]]],
    k: tl.In[E, B, S, HKV, D, tl.Strides[KB, KS, KH, Literal[1]]],
    v: tl.In[E, B, S, HKV, D, tl.Strides[VB, VS, VH, Literal[1]]],
    dout: tl.In[E, B, T, HKV, G, D, tl.Strides[OB, OT, OH, OG, Literal[1]]],
    rows: tl.In[tl.f32, B, HKV, G, Literal[2], Literal["(T + 255) // 128 * 128"]],
    dk: tl.Out[E, B, S, HKV, D],
    before: tl.i32,
    after: tl.i32,
    scale: tl.f32,
    *,
    E: tl.Const,
    D: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
):
    """A block has BN keys of a head, and goes through the queries of the G heads that share it, BM at a time, in a fixed order.

    Scores are transposed, so that threads hold the left operand of the next product in the registers where they computed it.
    `rows` are those of `attention_rows`: sums begin at `-lse / scale` and `-delta`, so that threads need registers for neither.
    """
    tl.requires(T <= 16777216, S <= 16777216, G <= 64)
    tl.requires(before >= 0, before <= 16777216, after >= 0, after <= 16777216)
    tl.requires(QB % 8 == 0 and QT % 8 == 0 and QH % 8 == 0 and QG % 8 == 0)
    tl.requires(OB % 8 == 0 and OT % 8 == 0 and OH % 8 == 0 and OG % 8 == 0)
    tl.requires(KB % 8 == 0 and KS % 8 == 0 and KH % 8 == 0 and VB % 8 == 0 and VS % 8 == 0 and VH % 8 == 0)
    tl.grid(HKV, tl.cdiv(S, BN), B)
    head, n, b = tl.bid(0), tl.bid(1), tl.bid(2)
    keys = tl.reshape(tl.load(k, (b, n, head, 0), shape=(1, BN, 1, D), pad=0), (BN, D))
    values = tl.reshape(tl.load(v, (b, n, head, 0), shape=(1, BN, 1, D), pad=0), (BN, D))
    log2_scale = scale * LOG2E
    inverse = 1.0 / log2_scale
    keys_sum = tl.zeros((BN, D), tl.f32)
    position = n * BN + T - S
    begin = min(max(position - after, 0), T) // BM
    count = max(tl.cdiv(max(min(position + BN + before, T), 0), BM) - begin, 0)
    for step in range(G * count):
        member, m = step // max(count, 1), begin + step % max(count, 1)
        query = tl.reshape(tl.load(q, (b, m, head, member, 0), shape=(1, BM, 1, 1, D), pad=0), (BM, D))
        grad = tl.reshape(tl.load(dout, (b, m, head, member, 0), shape=(1, BM, 1, 1, D), pad=0), (BM, D))
        log_sum = tl.reshape(tl.load(rows, (b, head, member, 0, m), shape=(1, 1, 1, 1, BM)), (1, BM))
        own = tl.reshape(tl.load(rows, (b, head, member, 1, m), shape=(1, 1, 1, 1, BM)), (1, BM))
        s = tl.mma(keys, query.T, tl.broadcast_to(log_sum * inverse, (BN, BM)))
        dp = tl.mma(values, grad.T, tl.broadcast_to(own, (BN, BM)))
        p = tl.exp2(s * log2_scale, fast=True)
        if m * BM + BM - 1 - before > position or m * BM + after < position + BN - 1:
            distance = (m * BM - position + tl.arange(BM))[None, :] - tl.arange(BN)[:, None]
            p = tl.where((distance <= before) & (distance >= -after), p, 0.0)
        keys_sum = tl.mma(tl.astype(p * dp, E), query, keys_sum)
    tl.store(dk, (b, n, head, 0), tl.reshape(tl.astype(keys_sum * scale, E), (1, BN, 1, D)), mask=True)
