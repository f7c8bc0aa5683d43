"""Attention of a new token per sequence from its QKV projection to a split cache of codes (Dao et al., Flash-Decoding)."""

from typing import Literal

import tilec as tl

from .cache_attention import with_new_token
from .cache_codes import attention_of_codes, decoded, first_codes, greatest, scale_of
from .dims import HKV, B, D, E, G, P, R, S
from .rotary import rotated_high, rotated_low


@tl.kernel
def rope_decode_attention_c8(
    qkv: tl.In[E, B, Literal["(G + 2) * HKV"], D],
    table: tl.In[tl.f32, R, D],
    positions: tl.In[tl.i32, B],
    lengths: tl.In[tl.i32, B],
    k_cache: tl.In[tl.f8e4m3, B, S, HKV, D],
    k_scales: tl.In[tl.f32, B, S, HKV],
    v_cache: tl.In[tl.f8e4m3, B, S, HKV, D],
    v_scales: tl.In[tl.f32, B, S, HKV],
    partial: tl.Out[tl.f32, B, P, HKV, G, D],
    maxima: tl.Out[tl.f32, B, P, HKV, G],
    sums: tl.Out[tl.f32, B, P, HKV, G],
    scale: tl.f32,
    *,
    E: tl.Const,
    G: tl.Const,
    D: tl.Const,
    BN: tl.Const,
    SLOTS: tl.Const,
):
    """`rope_decode_attention` of a cache of codes, by warps of SLOTS slots each. The new token's key and value are those that
    `rope_merge_kv_c8` writes: codes times their scale."""
    tl.grid(P, HKV, B)
    tl.requires(S >= BN and G + 2 * HKV >= 8 and P <= 4096 and S % BN == 0 and S <= 536870912 and HKV <= 65536)
    tl.values(positions, 0, R)
    tl.values(lengths, 1, S + 1)
    tl.resident(table, positions, lengths, k_cache, k_scales, v_cache, v_scales)
    part, head, b = tl.bid(0), tl.bid(1), tl.bid(2)
    slot, position = tl.load(lengths, b) - 1, tl.load(positions, b)
    ahead = first_codes(k_cache, k_scales, v_cache, v_scales, b, head, part, slot, BN, D)
    cos = tl.load(table, (position, 0), shape=(1, D // 2))[:, None, :]
    sin = tl.load(table, (position, 1), shape=(1, D // 2))[:, None, :]
    low = tl.load(qkv, offset=(b, head * G, 0), shape=(1, 8, D // 2)).astype(tl.f32)
    high = tl.load(qkv, offset=(b, head * G, D // 2), shape=(1, 8, D // 2)).astype(tl.f32)
    query_low = tl.reshape(tl.astype(rotated_low(low, high, cos, sin), E), (8, D // 2))
    query_high = tl.reshape(tl.astype(rotated_high(low, high, cos, sin), E), (8, D // 2))
    log2_scale = scale * 1.4426950408889634
    total, acc, top = attention_of_codes(
        query_low,
        query_high,
        k_cache,
        k_scales,
        v_cache,
        v_scales,
        b,
        head,
        part,
        P,  # pyright: ignore[reportArgumentType]
        slot,
        log2_scale,
        BN // SLOTS,
        SLOTS,
        D,
        ahead,
    )
    if tl.cdiv(slot, BN) % P == part:
        low = tl.load(qkv, offset=(b, G * HKV + head, 0), shape=(1, 1, D // 2)).astype(tl.f32)
        high = tl.load(qkv, offset=(b, G * HKV + head, D // 2), shape=(1, 1, D // 2)).astype(tl.f32)
        key_low, key_high = rotated_low(low, high, cos, sin), rotated_high(low, high, cos, sin)
        value = tl.load(qkv, offset=(b, (G + 1) * HKV + head, 0), shape=(1, 1, D)).astype(tl.f32)
        k_scale, v_scale = scale_of(tl.maximum(greatest(key_low), greatest(key_high))), scale_of(greatest(value))
        key_low, key_high = decoded(key_low, k_scale, D // 2), decoded(key_high, k_scale, D // 2)
        value = tl.reshape(decoded(value, v_scale, D), (D,))
        total, acc, top = with_new_token((total, acc, top), query_low, query_high, key_low, key_high, value, log2_scale)
    tl.store(partial, (b, part, head, 0, 0), tl.reshape(acc.T, (1, 1, 1, 8, D)), mask=True)
    tl.store(maxima, (b, part, head, 0), tl.reshape(tl.where(total > 0.0, top, -tl.inf), (1, 1, 1, 8)), mask=True)
    tl.store(sums, (b, part, head, 0), tl.reshape(total, (1, 1, 1, 8)), mask=True)
