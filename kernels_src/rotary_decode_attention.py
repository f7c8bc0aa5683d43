"""Attention of a new token per sequence from its QKV projection, the cache split among blocks (Dao et al., Flash-Decoding)."""

from typing import Literal

import tilec as tl

from .dims import HKV, B, D, E, G, P, R, S
from .rotary import normed_scale, rotated_high, rotated_low


@tl.kernel
def rotary_decode_attention(
    qkv: tl.In[E, B, Literal["(G + 2) * HKV"], D],
    q_weight: tl.In[E, D],
    k_weight: tl.In[E, D],
    table: tl.In[tl.f32, R, D],
    positions: tl.In[tl.i32, B],
    lengths: tl.In[tl.i32, B],
    k_cache: tl.In[E, B, S, HKV, D],
    v_cache: tl.In[E, B, S, HKV, D],
    partial: tl.Out[tl.f32, B, P, HKV, G, D],
    maxima: tl.Out[tl.f32, B, P, HKV, G],
    sums: tl.Out[tl.f32, B, P, HKV, G],
    eps: tl.f32,
    scale: tl.f32,
    *,
    E: tl.Const,
    G: tl.Const,
    D: tl.Const,
    BN: tl.Const,
):
    """`decode_attention` of the rows that `qk_norm_rope_kv` would make of `qkv`: query heads, key heads, value heads.

    Sequence b has `lengths[b]` slots once its new token has one, the last; `positions[b]` is the token's place in `table`. The
    cache is only read, and without the new token, which is added from `qkv` by the part that its slot's tile belongs to;
    `decode_merge_kv` writes it. Every part normalises and rotates the queries of its group for itself.
    """
    HEADS = 8 if G <= 8 else 16
    tl.grid(P, HKV, B)
    tl.requires(G + 2 * HKV >= HEADS and P <= 4096 and S % BN == 0 and S <= 536870912 and HKV <= 65536)
    tl.values(positions, 0, R)
    tl.values(lengths, 1, S + 1)
    tl.resident(q_weight, k_weight, table, positions, lengths, k_cache, v_cache)
    part, head, b = tl.bid(0), tl.bid(1), tl.bid(2)
    slot, position = tl.load(lengths, b) - 1, tl.load(positions, b)
    cos = tl.load(table, (position, 0), shape=(1, D // 2))[:, None, :]
    sin = tl.load(table, (position, 1), shape=(1, D // 2))[:, None, :]
    q_low, q_high = tl.load(q_weight, 0, shape=D // 2).astype(tl.f32), tl.load(q_weight, 1, shape=D // 2).astype(tl.f32)
    k_low, k_high = tl.load(k_weight, 0, shape=D // 2).astype(tl.f32), tl.load(k_weight, 1, shape=D // 2).astype(tl.f32)
    low = tl.load(qkv, offset=(b, head * G, 0), shape=(1, HEADS, D // 2)).astype(tl.f32)
    high = tl.load(qkv, offset=(b, head * G, D // 2), shape=(1, HEADS, D // 2)).astype(tl.f32)
    factor = normed_scale(low, high, D, eps)
    low, high = low * factor * q_low[None, None, :], high * factor * q_high[None, None, :]
    query_low = tl.reshape(tl.astype(rotated_low(low, high, cos, sin), E), (HEADS, D // 2))
    query_high = tl.reshape(tl.astype(rotated_high(low, high, cos, sin), E), (HEADS, D // 2))
    log2_scale = scale * 1.4426950408889634
    top = tl.full((HEADS,), -tl.inf, tl.f32)
    total = tl.zeros((HEADS,), tl.f32)
    acc = tl.zeros((D, HEADS), tl.f32)
    for j in range(part, tl.cdiv(slot, BN), P):
        keys_low = tl.reshape(tl.load(k_cache, offset=(b, j * BN, head, 0), shape=(1, BN, 1, D // 2)), (BN, D // 2))
        keys_high = tl.reshape(tl.load(k_cache, offset=(b, j * BN, head, D // 2), shape=(1, BN, 1, D // 2)), (BN, D // 2))
        v = tl.reshape(tl.load(v_cache, (b, j, head, 0), shape=(1, BN, 1, D)), (BN, D))
        s = tl.mma(keys_high, query_high.T, tl.mma(keys_low, query_low.T, tl.zeros((BN, HEADS), tl.f32)))
        s = tl.where((j * BN + tl.arange(BN))[:, None] < slot, s, -tl.inf)
        higher = tl.maximum(top, tl.max(s, axis=0) * log2_scale)
        p = tl.exp2(s * log2_scale - higher[None, :], fast=True)
        shrink = tl.exp2(top - higher, fast=True)
        total = total * shrink + tl.sum(p, axis=0)
        acc = tl.mma(v.T, tl.astype(p, E), acc * shrink[None, :])
        top = higher
    if slot // BN % P == part:
        low = tl.load(qkv, offset=(b, G * HKV + head, 0), shape=(1, 1, D // 2)).astype(tl.f32)
        high = tl.load(qkv, offset=(b, G * HKV + head, D // 2), shape=(1, 1, D // 2)).astype(tl.f32)
        factor = normed_scale(low, high, D, eps)
        low, high = low * factor * k_low[None, None, :], high * factor * k_high[None, None, :]
        key_low = tl.reshape(tl.astype(rotated_low(low, high, cos, sin), E), (1, D // 2)).astype(tl.f32)
        key_high = tl.reshape(tl.astype(rotated_high(low, high, cos, sin), E), (1, D // 2)).astype(tl.f32)
        value = tl.reshape(tl.load(qkv, offset=(b, (G + 1) * HKV + head, 0), shape=(1, 1, D)), (D,)).astype(tl.f32)
        s_new = tl.sum(query_low.astype(tl.f32) * key_low, axis=1) + tl.sum(query_high.astype(tl.f32) * key_high, axis=1)
        higher = tl.maximum(top, s_new * log2_scale)
        p_new = tl.exp2(s_new * log2_scale - higher, fast=True)
        shrink = tl.exp2(top - higher, fast=True)
        total = total * shrink + p_new
        acc = acc * shrink[None, :] + value[:, None] * p_new[None, :]
        top = higher
    tl.store(partial, (b, part, head, 0, 0), tl.reshape(acc.T, (1, 1, 1, HEADS, D)), mask=True)
    tl.store(maxima, (b, part, head, 0), tl.reshape(top, (1, 1, 1, HEADS)), mask=True)
    tl.store(sums, (b, part, head, 0), tl.reshape(total, (1, 1, 1, HEADS)), mask=True)
