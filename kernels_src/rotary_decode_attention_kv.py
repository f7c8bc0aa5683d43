"""Attention of a new token per sequence from its QKV projection over a short cache, which the token's key and value go into."""

from typing import Literal

import tilec as tl

from .dims import HKV, B, D, E, G, R, S
from .rotary import normed_scale, rotated_high, rotated_low


@tl.kernel
def rotary_decode_attention_kv(
    qkv: tl.In[E, B, Literal["(G + 2) * HKV"], D],
    q_weight: tl.In[E, D],
    k_weight: tl.In[E, D],
    table: tl.In[tl.f32, R, D],
    positions: tl.In[tl.i32, B],
    lengths: tl.In[tl.i32, B],
    out: tl.Out[E, B, HKV, G, D],
    k_cache: tl.InOut[E, B, S, HKV, D],
    v_cache: tl.InOut[E, B, S, HKV, D],
    eps: tl.f32,
    scale: tl.f32,
    *,
    E: tl.Const,
    G: tl.Const,
    D: tl.Const,
    BN: tl.Const,
):
    """What `rotary_decode_attention` and `decode_merge_kv` make together, by one block for each key head of a sequence: no part
    waits for another, which pays where a cache is short. Right for any length.

    Sequence b has `lengths[b]` slots once its new token has one, the last; `positions[b]` is the token's place in `table`. Key
    and value of the token go to its slot; other slots stay as they are.
    """
    HEADS = 8 if G <= 8 else 16
    tl.grid(HKV, B)
    tl.requires(G + 2 * HKV >= HEADS and S % BN == 0 and S <= 536870912 and HKV <= 65536)
    tl.values(positions, 0, R)
    tl.values(lengths, 1, S + 1)
    tl.resident(q_weight, k_weight, table, positions, lengths, k_cache, v_cache)
    head, b = tl.bid(0), tl.bid(1)
    slot, position = tl.load(lengths, b) - 1, tl.load(positions, b)
    cos = tl.load(table, (position, 0), shape=(1, D // 2))[:, None, :]
    sin = tl.load(table, (position, 1), shape=(1, D // 2))[:, None, :]
    q_low, q_high = tl.load(q_weight, 0, shape=D // 2).astype(tl.f32), tl.load(q_weight, 1, shape=D // 2).astype(tl.f32)
    k_low, k_high = tl.load(k_weight, 0, shape=D // 2).astype(tl.f32), tl.load(k_weight, 1, shape=D // 2).astype(tl.f32)
    low = tl.load(qkv, offset=(b, G * HKV + head, 0), shape=(1, 1, D // 2)).astype(tl.f32)
    high = tl.load(qkv, offset=(b, G * HKV + head, D // 2), shape=(1, 1, D // 2)).astype(tl.f32)
    factor = normed_scale(low, high, D, eps)
    low, high = low * factor * k_low[None, None, :], high * factor * k_high[None, None, :]
    key_low, key_high = tl.astype(rotated_low(low, high, cos, sin), E), tl.astype(rotated_high(low, high, cos, sin), E)
    value = tl.load(qkv, offset=(b, (G + 1) * HKV + head, 0), shape=(1, 1, D))
    low = tl.load(qkv, offset=(b, head * G, 0), shape=(1, HEADS, D // 2)).astype(tl.f32)
    high = tl.load(qkv, offset=(b, head * G, D // 2), shape=(1, HEADS, D // 2)).astype(tl.f32)
    factor = normed_scale(low, high, D, eps)
    low, high = low * factor * q_low[None, None, :], high * factor * q_high[None, None, :]
    query_low = tl.reshape(tl.astype(rotated_low(low, high, cos, sin), E), (HEADS, D // 2))
    query_high = tl.reshape(tl.astype(rotated_high(low, high, cos, sin), E), (HEADS, D // 2))
    log2_scale = scale * 1.4426950408889634
    new_low, new_high = tl.reshape(key_low, (1, D // 2)).astype(tl.f32), tl.reshape(key_high, (1, D // 2)).astype(tl.f32)
    top = (
        tl.sum(query_low.astype(tl.f32) * new_low, axis=1) + tl.sum(query_high.astype(tl.f32) * new_high, axis=1)
    ) * log2_scale
    total = tl.full((HEADS,), 1.0, tl.f32)
    acc = tl.zeros((D, HEADS), tl.f32) + tl.reshape(value, (D,)).astype(tl.f32)[:, None]
    for j in range(tl.cdiv(slot, BN)):
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
    tl.store(out, (b, head, 0, 0), tl.reshape(tl.astype(acc / total[None, :], E).T, (1, 1, HEADS, D)), mask=True)
    tl.store(k_cache, (b, slot, head, 0), tl.reshape(key_low, (1, 1, 1, D // 2)))
    tl.store(k_cache, (b, slot, head, 1), tl.reshape(key_high, (1, 1, 1, D // 2)))
    tl.store(v_cache, (b, slot, head, 0), tl.reshape(value, (1, 1, 1, D)))
