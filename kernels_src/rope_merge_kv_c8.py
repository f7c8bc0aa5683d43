"""End of attention at decode: combine what its parts found, and put the new token's row into a cache of codes."""

from typing import Literal

import tilec as tl

from .cache_codes import coded, greatest, scale_of
from .dims import HKV, B, D, E, G, P, R, S
from .rotary import rotated_high, rotated_low


@tl.kernel
def rope_merge_kv_c8(
    partial: tl.In[tl.f32, B, P, HKV, G, D],
    maxima: tl.In[tl.f32, B, P, HKV, G],
    sums: tl.In[tl.f32, B, P, HKV, G],
    qkv: tl.In[E, B, Literal["(G + 2) * HKV"], D],
    table: tl.In[tl.f32, R, D],
    positions: tl.In[tl.i32, B],
    slots: tl.In[tl.i32, B],
    out: tl.Out[E, B, HKV, G, D],
    k_cache: tl.InOut[tl.f8e4m3, B, S, HKV, D],
    k_scales: tl.InOut[tl.f32, B, S, HKV],
    v_cache: tl.InOut[tl.f8e4m3, B, S, HKV, D],
    v_scales: tl.InOut[tl.f32, B, S, HKV],
    *,
    E: tl.Const,
    G: tl.Const,
    D: tl.Const,
    P: tl.Const,
):
    """`rope_merge_kv` of a cache of codes: key and value of each head go to slot `slots[b]` as codes and a scale."""
    tl.grid(G + 1, HKV, B)
    tl.requires(HKV <= 65536)
    tl.values(positions, 0, R)
    tl.values(slots, 0, S)
    tl.resident(table, positions, slots)
    member, head, b = tl.bid(0), tl.bid(1), tl.bid(2)
    slot, position = tl.load(slots, b), tl.load(positions, b)
    cos = tl.load(table, (position, 0), shape=(1, D // 2))[:, None, :]
    sin = tl.load(table, (position, 1), shape=(1, D // 2))[:, None, :]
    if member < G:
        acc = tl.reshape(tl.load(partial, (b, 0, head, member, 0), shape=(1, P, 1, 1, D)), (P, D))
        top = tl.reshape(tl.load(maxima, (b, 0, head, member), shape=(1, P, 1, 1)), (P,))
        part = tl.reshape(tl.load(sums, (b, 0, head, member), shape=(1, P, 1, 1)), (P,))
        weight = tl.exp2(top - tl.max(top, axis=0), fast=True)
        mean = tl.sum(acc * weight[:, None], axis=0) / tl.sum(part * weight, axis=0)
        tl.store(out, (b, head, member, 0), tl.reshape(tl.astype(mean, E), (1, 1, 1, D)))
    else:
        low = tl.load(qkv, offset=(b, G * HKV + head, 0), shape=(1, 1, D // 2)).astype(tl.f32)
        high = tl.load(qkv, offset=(b, G * HKV + head, D // 2), shape=(1, 1, D // 2)).astype(tl.f32)
        key_low, key_high = rotated_low(low, high, cos, sin), rotated_high(low, high, cos, sin)
        value = tl.load(qkv, offset=(b, (G + 1) * HKV + head, 0), shape=(1, 1, D)).astype(tl.f32)
        k_scale, v_scale = scale_of(tl.maximum(greatest(key_low), greatest(key_high))), scale_of(greatest(value))
        tl.store(k_cache, (b, slot, head, 0), tl.reshape(coded(key_low, k_scale), (1, 1, 1, D // 2)))
        tl.store(k_cache, (b, slot, head, 1), tl.reshape(coded(key_high, k_scale), (1, 1, 1, D // 2)))
        tl.store(k_scales, (b, slot, head), tl.reshape(k_scale, (1, 1, 1)))
        tl.store(v_cache, (b, slot, head, 0), tl.reshape(coded(value, v_scale), (1, 1, 1, D)))
        tl.store(v_scales, (b, slot, head), tl.reshape(v_scale, (1, 1, 1)))
