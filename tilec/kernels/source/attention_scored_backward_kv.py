"""Gradients of attention with a score function with respect to keys and values (Dao, FlashAttention-2, 2023, algorithm 2)."""

from typing import Literal

from attention_parts import HKV, KH, KS, OG, OH, OT, QG, QH, QT, VH, VS, D, E, G, S, T
from attention_scores import ALIBI, factors, scored

import tilec as tl


@tl.kernel
def attention_scored_backward_kv(
    q: tl.In[E, T, HKV, G, D, tl.Strides[QT, QH, QG, Literal[1]]],
    k: tl.In[E, S, HKV, D, tl.Strides[KS, KH, Literal[1]]],
    v: tl.In[E, S, HKV, D, tl.Strides[VS, VH, Literal[1]]],
    dout: tl.In[E, T, HKV, G, D, tl.Strides[OT, OH, OG, Literal[1]]],
    rows: tl.In[tl.f32, HKV, G, Literal[2], Literal["(T + 255) // 128 * 128"]],
    spans: tl.In[tl.i32, Literal["(T + ROWS - 1) // ROWS + (S + ROWS - 1) // ROWS"], Literal[4], Literal["ROWS"]],
    tiles: tl.In[tl.i32, Literal["(T + ROWS - 1) // ROWS + (S + ROWS - 1) // ROWS"], Literal[4]],
    slopes: tl.In[tl.f32, HKV, G, Literal["(T + ROWS - 1) // ROWS + (S + ROWS - 1) // ROWS"], Literal["ROWS"]],
    dk: tl.Out[E, S, HKV, D],
    dv: tl.Out[E, S, HKV, D],
    scale: tl.f32,
    cap: tl.f32,
    *,
    E: tl.Const,
    D: tl.Const,
    SCORE: tl.Const,
    ROWS: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
):
    """A block has BN keys of a head, of one sequence or of several, and goes through the queries of the G heads that share it,
    BM at a time, in a fixed order. ROWS: of a tile of `attention_spans`, which several blocks may share.

    Scores are transposed, so that threads hold the left operand of the next product in the registers where they computed it.
    `rows` are those of `attention_rows`: gradients of probabilities begin at `-delta`, which then takes no registers. Keys past
    the last one have sums that are not stored.
    """
    assert ROWS % BN == 0
    tl.requires(T <= 16777216, S <= 16777216, G <= 64)
    tl.requires(QT % 8 == 0 and QH % 8 == 0 and QG % 8 == 0)
    tl.requires(OT % 8 == 0 and OH % 8 == 0 and OG % 8 == 0)
    tl.requires(KS % 8 == 0 and KH % 8 == 0 and VS % 8 == 0 and VH % 8 == 0)
    tl.grid(HKV, tl.cdiv(S, BN))
    head, n = tl.bid(0), tl.bid(1)
    tile, part = tl.cdiv(T, ROWS) + n // (ROWS // BN), n % (ROWS // BN)
    keys = tl.reshape(tl.load(k, (n, head, 0), shape=(BN, 1, D), pad=0), (BN, D))
    values = tl.reshape(tl.load(v, (n, head, 0), shape=(BN, 1, D), pad=0), (BN, D))
    low = tl.reshape(tl.load(spans, (tile, 0, part), shape=(1, 1, BN)), (BN, 1))
    high = tl.reshape(tl.load(spans, (tile, 1, part), shape=(1, 1, BN)), (BN, 1))
    begin, stop = tl.load(tiles, (tile, 0)), tl.load(tiles, (tile, 1))
    inside, whole = tl.load(tiles, (tile, 2)), tl.load(tiles, (tile, 3))
    begin = min(max(begin, 0), T) // BM
    count = max(tl.cdiv(min(max(stop, 0), T), BM) - begin, 0)
    gain, limit = factors(scale, cap, SCORE)
    index = 0.0
    if SCORE == ALIBI:
        index = tl.reshape(tl.load(spans, (tile, 2, part), shape=(1, 1, BN)), (BN, 1)).astype(tl.f32)
    keys_sum = tl.zeros((BN, D), tl.f32)
    values_sum = tl.zeros((BN, D), tl.f32)
    for step in range(G * count):
        member, m = step // max(count, 1), begin + step % max(count, 1)
        query = tl.reshape(tl.load(q, (m, head, member, 0), shape=(BM, 1, 1, D), pad=0), (BM, D))
        grad = tl.reshape(tl.load(dout, (m, head, member, 0), shape=(BM, 1, 1, D), pad=0), (BM, D))
        log_sum = tl.reshape(tl.load(rows, (head, member, 0, m), shape=(1, 1, 1, BM)), (1, BM))
        own = tl.reshape(tl.load(rows, (head, member, 1, m), shape=(1, 1, 1, BM)), (1, BM))
        s = tl.mma(keys, query.T, tl.zeros((BN, BM), tl.f32))
        dp = tl.mma(values, grad.T, tl.broadcast_to(own, (BN, BM)))
        distance, slope = 0.0, 0.0
        if SCORE == ALIBI:
            distance = (m * BM + tl.arange(BM)).astype(tl.f32)[None, :] - index
            slope = tl.reshape(tl.load(slopes, (head, member, tile, part), shape=(1, 1, 1, BN)), (BN, 1))
        scores, derivative = scored(s, distance, slope, gain, limit, SCORE)
        p = tl.exp2(scores + log_sum, fast=True)
        if m * BM < inside or m * BM + BM > whole:
            at = (m * BM + tl.arange(BM))[None, :]
            p = tl.where((at >= low) & (at < high), p, 0.0)
        values_sum = tl.mma(tl.astype(p, E), grad, values_sum)
        keys_sum = tl.mma(tl.astype(p * derivative * dp, E), query, keys_sum)
    tl.store(dk, (n, head, 0), tl.reshape(tl.astype(keys_sum * scale, E), (BN, 1, D)), mask=True)
    tl.store(dv, (n, head, 0), tl.reshape(tl.astype(values_sum, E), (BN, 1, D)), mask=True)
