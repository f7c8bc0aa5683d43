"""Attention of a new token per sequence from its QKV projection to a short cache of codes, which the token's row goes into."""

from typing import Literal

import tilec as tl

from .cache_attention import with_new_token
from .cache_codes import attention_of_codes, coded, decoded, first_codes, greatest, scale_of
from .dims import HKV, B, D, E, G, R, S
from .rotary import rotated_high, rotated_low


@tl.kernel
def rope_decode_attention_kv_c8(
    qkv: tl.In[E, B, Literal["(G + 2) * HKV"], D],
    table: tl.In[tl.f32, R, D],
    positions: tl.In[tl.i32, B],
    lengths: tl.In[tl.i32, B],
    out: tl.Out[E, B, HKV, G, D],
    k_cache: tl.InOut[tl.f8e4m3, B, S, HKV, D],
    k_scales: tl.InOut[tl.f32, B, S, HKV],
    v_cache: tl.InOut[tl.f8e4m3, B, S, HKV, D],
    v_scales: tl.InOut[tl.f32, B, S, HKV],
    scale: tl.f32,
    *,
    E: tl.Const,
    G: tl.Const,
    D: tl.Const,
    BN: tl.Const,
    SLOTS: tl.Const,
):
    """`rope_decode_attention_kv` of a cache of codes, by warps of SLOTS slots each. The new token's key and value are those
    that the cache gets: codes times their scale."""
    tl.grid(HKV, B)
    tl.requires(S >= BN and G + 2 * HKV >= 8 and S % BN == 0 and S <= 536870912 and HKV <= 65536)
    tl.values(positions, 0, R)
    tl.values(lengths, 1, S + 1)
    tl.resident(table, positions, lengths, k_cache, k_scales, v_cache, v_scales)
    head, b = tl.bid(0), tl.bid(1)
    slot, position = tl.load(lengths, b) - 1, tl.load(positions, b)
    ahead = first_codes(k_cache, k_scales, v_cache, v_scales, b, head, 0, slot, BN, D)
    cos = tl.load(table, (position, 0), shape=(1, D // 2))[:, None, :]
    sin = tl.load(table, (position, 1), shape=(1, D // 2))[:, None, :]
    low = tl.load(qkv, offset=(b, G * HKV + head, 0), shape=(1, 1, D // 2)).astype(tl.f32)
    high = tl.load(qkv, offset=(b, G * HKV + head, D // 2), shape=(1, 1, D // 2)).astype(tl.f32)
    key_low, key_high = rotated_low(low, high, cos, sin), rotated_high(low, high, cos, sin)
    value = tl.load(qkv, offset=(b, (G + 1) * HKV + head, 0), shape=(1, 1, D)).astype(tl.f32)
    k_scale, v_scale = scale_of(tl.maximum(greatest(key_low), greatest(key_high))), scale_of(greatest(value))
    low = tl.load(qkv, offset=(b, head * G, 0), shape=(1, 8, D // 2)).astype(tl.f32)
    high = tl.load(qkv, offset=(b, head * G, D // 2), shape=(1, 8, D // 2)).astype(tl.f32)
    query_low = tl.reshape(tl.astype(rotated_low(low, high, cos, sin), E), (8, D // 2))
    query_high = tl.reshape(tl.astype(rotated_high(low, high, cos, sin), E), (8, D // 2))
    log2_scale = scale * 1.4426950408889634
    state = attention_of_codes(
        query_low,
        query_high,
        k_cache,
        k_scales,
        v_cache,
        v_scales,
        b,
        head,
        0,
        1,
        slot,
        log2_scale,
        BN // SLOTS,
        SLOTS,
        D,
        ahead,
    )
    new_low, new_high = decoded(key_low, k_scale, D // 2), decoded(key_high, k_scale, D // 2)
    new_value = tl.reshape(decoded(value, v_scale, D), (D,))
    total, acc, _ = with_new_token(state, query_low, query_high, new_low, new_high, new_value, log2_scale)
    tl.store(out, (b, head, 0, 0), tl.reshape(tl.astype(acc / total[None, :], E).T, (1, 1, 8, D)), mask=True)
    tl.store(k_cache, (b, slot, head, 0), tl.reshape(coded(key_low, k_scale), (1, 1, 1, D // 2)))
    tl.store(k_cache, (b, slot, head, 1), tl.reshape(coded(key_high, k_scale), (1, 1, 1, D // 2)))
    tl.store(k_scales, (b, slot, head), tl.reshape(k_scale, (1, 1, 1)))
    tl.store(v_cache, (b, slot, head, 0), tl.reshape(coded(value, v_scale), (1, 1, 1, D)))
    tl.store(v_scales, (b, slot, head), tl.reshape(v_scale, (1, 1, 1)))
