"""Attention with a score function, of sequences one after the other in memory (Dao, FlashAttention-2, 2023)."""

from typing import Literal

from attention_parts import HKV, KH, KS, LN2, QG, QH, QT, VH, VS, D, E, G, S, T
from attention_scores import ALIBI, factors, scored

import tilec as tl


@tl.kernel
def attention_scored(
    q: tl.In[E, T, HKV, G, D, tl.Strides[QT, QH, QG, Literal[1]]],
    k: tl.In[E, S, HKV, D, tl.Strides[KS, KH, Literal[1]]],
    v: tl.In[E, S, HKV, D, tl.Strides[VS, VH, Literal[1]]],
    spans: tl.In[tl.i32, Literal["(T + BM - 1) // BM + (S + BM - 1) // BM"], Literal[4], Literal["BM"]],
    tiles: tl.In[tl.i32, Literal["(T + BM - 1) // BM + (S + BM - 1) // BM"], Literal[4]],
    slopes: tl.In[tl.f32, HKV, G, Literal["(T + BM - 1) // BM + (S + BM - 1) // BM"], Literal["BM"]],
    out: tl.Out[E, T, HKV, G, D],
    lse: tl.Out[tl.f32, HKV, G, T],
    scale: tl.f32,
    cap: tl.f32,
    *,
    E: tl.Const,
    D: tl.Const,
    SCORE: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
):
    """`attention_varlen` of scores that `scored` makes of products; `slopes` are those of `attention_slopes`. `lse` is of
    these scores.
    """
    tl.requires(T <= 16777216, S <= 16777216)
    tl.requires(QT % 8 == 0 and QH % 8 == 0 and QG % 8 == 0)
    tl.requires(KS % 8 == 0 and KH % 8 == 0 and VS % 8 == 0 and VH % 8 == 0)
    tl.requires(HKV * G <= 65535)
    tl.grid(HKV * G, tl.cdiv(T, BM))
    m, head, member = tl.cdiv(T, BM) - 1 - tl.bid(1), tl.bid(0) // G, tl.bid(0) % G
    query = tl.reshape(tl.load(q, (m, head, member, 0), shape=(BM, 1, 1, D), pad=0), (BM, D))
    low = tl.reshape(tl.load(spans, (m, 0, 0), shape=(1, 1, BM)), (BM, 1))
    high = tl.reshape(tl.load(spans, (m, 1, 0), shape=(1, 1, BM)), (BM, 1))
    begin, stop = tl.load(tiles, (m, 0)), tl.load(tiles, (m, 1))
    inside, whole = tl.load(tiles, (m, 2)), tl.load(tiles, (m, 3))
    begin, stop = min(max(begin, 0), S) // BN, tl.cdiv(min(max(stop, 0), S), BN)
    gain, limit = factors(scale, cap, SCORE)
    index, slope = 0.0, 0.0
    if SCORE == ALIBI:
        index = tl.reshape(tl.load(spans, (m, 2, 0), shape=(1, 1, BM)), (BM, 1)).astype(tl.f32)
        slope = tl.reshape(tl.load(slopes, (head, member, m, 0), shape=(1, 1, 1, BM)), (BM, 1))
    top = tl.full((BM,), -1e30, tl.f32)
    total = tl.zeros((BM,), tl.f32)
    acc = tl.zeros((BM, D), tl.f32)
    for j in range(begin, stop):
        keys = tl.reshape(tl.load(k, (j, head, 0), shape=(BN, 1, D), pad=0), (BN, D))
        values = tl.reshape(tl.load(v, (j, head, 0), shape=(BN, 1, D), pad=0), (BN, D))
        s = tl.mma(query, keys.T, tl.zeros((BM, BN), tl.f32))
        distance = 0.0
        if SCORE == ALIBI:
            distance = (j * BN + tl.arange(BN)).astype(tl.f32)[None, :] - index
        s, _ = scored(s, distance, slope, gain, limit, SCORE)
        if j * BN < inside or j * BN + BN > whole:
            at = (j * BN + tl.arange(BN))[None, :]
            s = tl.where((at >= low) & (at < high), s, -tl.inf)
        higher = tl.maximum(top, tl.max(s, axis=1))
        p = tl.exp2(s - higher[:, None], fast=True)
        shrink = tl.exp2(top - higher, fast=True)
        total = total * shrink + tl.sum(p, axis=1)
        acc = tl.mma(tl.astype(p, E), values, acc * shrink[:, None])
        top = higher
        if SCORE == ALIBI:  # carried, so that threads have the rows of `higher` before the loop
            index, slope = index + higher[:, None] * 0.0, slope + higher[:, None] * 0.0
    share = tl.where(total > 0, 1.0 / total, 0.0)
    tl.store(out, (m, head, member, 0), tl.reshape(tl.astype(acc * share[:, None], E), (BM, 1, 1, D)), mask=True)
    log_sum = tl.where(total > 0, (top + tl.log2(total, fast=True)) * LN2, tl.inf)
    tl.store(lse, (head, member, m), tl.reshape(log_sum, (1, 1, BM)), mask=True)
