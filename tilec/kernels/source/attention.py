"""Attention of many queries at once, with the log-sum-exp of each (Dao, FlashAttention-2, 2023)."""

from typing import Literal

from attention_parts import HKV, KB, KH, KS, LN2, LOG2E, QB, QG, QH, QT, VB, VH, VS, B, D, E, G, S, T

import tilec as tl


@tl.kernel
def attention(
    q: tl.In[E, B, T, HKV, G, D, tl.Strides[QB, QT, QH, QG, Literal[1]]],
    k: tl.In[E, B, S, HKV, D, tl.Strides[KB, KS, KH, Literal[1]]],
    v: tl.In[E, B, S, HKV, D, tl.Strides[VB, VS, VH, Literal[1]]],
    out: tl.Out[E, B, T, HKV, G, D],
    lse: tl.Out[tl.f32, B, HKV, G, T],
    before: tl.i32,
    after: tl.i32,
    scale: tl.f32,
    *,
    E: tl.Const,
    D: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
):
    """Query t, at position `p = t + S - T`, attends to keys `p - before` to `p + after`.

    `out = softmax(q @ k.T * scale) @ v` in f32, `scale` > 0; 0 where a query has no key. `lse` is the logarithm of the sum of
    `exp(q @ k.T * scale)`, infinite where a query has no key. Maxima begin at a finite number, since a tile may have no key of
    a query.

    Blocks take the last queries first, which have the most keys if `after` is 0.
    """
    tl.requires(T <= 16777216, S <= 16777216)
    tl.requires(before >= 0, before <= 16777216, after >= 0, after <= 16777216)
    tl.requires(QB % 8 == 0 and QT % 8 == 0 and QH % 8 == 0 and QG % 8 == 0)
    tl.requires(KB % 8 == 0 and KS % 8 == 0 and KH % 8 == 0 and VB % 8 == 0 and VS % 8 == 0 and VH % 8 == 0)
    heads = HKV * G
    tl.requires(heads <= 65535)
    tl.grid(heads, tl.cdiv(T, BM), B)
    m, b = tl.cdiv(T, BM) - 1 - tl.bid(1), tl.bid(2)
    head, member = tl.bid(0) // G, tl.bid(0) % G
    query = tl.reshape(tl.load(q, (b, m, head, member, 0), shape=(1, BM, 1, 1, D), pad=0), (BM, D))
    log2_scale = scale * LOG2E
    top = tl.full((BM,), -1e30, tl.f32)
    total = tl.zeros((BM,), tl.f32)
    acc = tl.zeros((BM, D), tl.f32)
    position = m * BM + S - T
    begin = max(position - before, 0) // BN
    inside = max(position + BM - 1 - before, 0)
    whole = min(position + after + 1, S) // BN
    for j in range(begin, tl.cdiv(max(min(position + BM + after, S), 0), BN)):
        keys = tl.reshape(tl.load(k, (b, j, head, 0), shape=(1, BN, 1, D), pad=0), (BN, D))
        values = tl.reshape(tl.load(v, (b, j, head, 0), shape=(1, BN, 1, D), pad=0), (BN, D))
        s = tl.mma(query, keys.T, tl.zeros((BM, BN), tl.f32))
        if j * BN < inside or j >= whole:
            at = (j * BN + tl.arange(BN))[None, :]
            own = (position + tl.arange(BM))[:, None]
            s = tl.where((at >= own - before) & (at <= own + after) & (at < S), s, -tl.inf)
        higher = tl.maximum(top, tl.max(s, axis=1) * log2_scale)
        p = tl.exp2(s * log2_scale - higher[:, None], fast=True)
        shrink = tl.exp2(top - higher, fast=True)
        total = total * shrink + tl.sum(p, axis=1)
        acc = tl.mma(tl.astype(p, E), values, acc * shrink[:, None])
        top = higher
    share = tl.where(total > 0, 1.0 / total, 0.0)
    tl.store(out, (b, m, head, member, 0), tl.reshape(tl.astype(acc * share[:, None], E), (1, BM, 1, 1, D)), mask=True)
    log_sum = tl.where(total > 0, (top + tl.log2(total, fast=True)) * LN2, tl.inf)
    tl.store(lse, (b, head, member, m), tl.reshape(log_sum, (1, 1, 1, BM)), mask=True)
