"""Gradient of attention with a score function with respect to queries (Dao, FlashAttention-2, 2023, algorithm 2)."""

from typing import Literal

from attention_parts import HKV, KH, KS, OG, OH, OT, QG, QH, QT, VH, VS, D, E, G, S, T
from attention_scores import ALIBI, factors, scored

import tilec as tl


@tl.kernel
def attention_scored_backward_q(
    q: tl.In[E, T, HKV, G, D, tl.Strides[QT, QH, QG, Literal[1]]],
    k: tl.In[E, S, HKV, D, tl.Strides[KS, KH, Literal[1]]],
    v: tl.In[E, S, HKV, D, tl.Strides[VS, VH, Literal[1]]],
    dout: tl.In[E, T, HKV, G, D, tl.Strides[OT, OH, OG, Literal[1]]],
    rows: tl.In[tl.f32, HKV, G, Literal[2], Literal["(T + 255) // 128 * 128"]],
    spans: tl.In[tl.i32, Literal["(T + BM - 1) // BM + (S + BM - 1) // BM"], Literal[4], Literal["BM"]],
    tiles: tl.In[tl.i32, Literal["(T + BM - 1) // BM + (S + BM - 1) // BM"], Literal[4]],
    slopes: tl.In[tl.f32, HKV, G, Literal["(T + BM - 1) // BM + (S + BM - 1) // BM"], Literal["BM"]],
    dq: tl.Out[E, T, HKV, G, D],
    scale: tl.f32,
    cap: tl.f32,
    *,
    E: tl.Const,
    D: tl.Const,
    SCORE: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
):
    """A block has BM queries of a head, as in `attention_scored`, and goes through the keys, BN at a time.

    `rows` are those of `attention_rows`. Tiles with keys past the last one are masked: exponentials of these have no bound.
    """
    tl.requires(T <= 16777216, S <= 16777216)
    tl.requires(QT % 8 == 0 and QH % 8 == 0 and QG % 8 == 0)
    tl.requires(OT % 8 == 0 and OH % 8 == 0 and OG % 8 == 0)
    tl.requires(KS % 8 == 0 and KH % 8 == 0 and VS % 8 == 0 and VH % 8 == 0)
    tl.grid(HKV * G, tl.cdiv(T, BM))
    m, head, member = tl.cdiv(T, BM) - 1 - tl.bid(1), tl.bid(0) // G, tl.bid(0) % G
    query = tl.reshape(tl.load(q, (m, head, member, 0), shape=(BM, 1, 1, D), pad=0), (BM, D))
    grad = tl.reshape(tl.load(dout, (m, head, member, 0), shape=(BM, 1, 1, D), pad=0), (BM, D))
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
    log_sum = tl.reshape(tl.load(rows, (head, member, 0, m), shape=(1, 1, 1, BM)), (BM, 1))
    own = tl.reshape(tl.load(rows, (head, member, 1, m), shape=(1, 1, 1, BM)), (BM, 1))
    acc = tl.zeros((BM, D), tl.f32)
    for j in range(begin, stop):
        keys = tl.reshape(tl.load(k, (j, head, 0), shape=(BN, 1, D), pad=0), (BN, D))
        values = tl.reshape(tl.load(v, (j, head, 0), shape=(BN, 1, D), pad=0), (BN, D))
        s = tl.mma(query, keys.T, tl.zeros((BM, BN), tl.f32))
        dp = tl.mma(grad, values.T, tl.zeros((BM, BN), tl.f32))
        distance = 0.0
        if SCORE == ALIBI:
            distance = (j * BN + tl.arange(BN)).astype(tl.f32)[None, :] - index
        scores, derivative = scored(s, distance, slope, gain, limit, SCORE)
        p = tl.exp2(scores + log_sum, fast=True)
        if j * BN < inside or j * BN + BN > whole:
            at = (j * BN + tl.arange(BN))[None, :]
            p = tl.where((at >= low) & (at < high), p, 0.0)
        acc = tl.mma(tl.astype(p * derivative * (dp + own), E), keys, acc)
    tl.store(dq, (m, head, member, 0), tl.reshape(tl.astype(acc * scale, E), (BM, 1, 1, D)), mask=True)
