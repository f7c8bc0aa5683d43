"""End of attention at decode: combine what its parts found, and put the new token's key and value into the cache."""

from typing import Literal

import tilec as tl

from .dims import HKV, B, D, E, G, P, R, S
from .rotary import rotated_high, rotated_low


@tl.kernel
def rope_merge_kv(
    partial: tl.In[tl.f32, B, P, HKV, G, D],
    maxima: tl.In[tl.f32, B, P, HKV, G],
    sums: tl.In[tl.f32, B, P, HKV, G],
    qkv: tl.In[E, B, Literal["(G + 2) * HKV"], D],
    table: tl.In[tl.f32, R, D],
    positions: tl.In[tl.i32, B],
    slots: tl.In[tl.i32, B],
    out: tl.Out[E, B, HKV, G, D],
    k_cache: tl.InOut[E, B, S, HKV, D],
    v_cache: tl.InOut[E, B, S, HKV, D],
    *,
    E: tl.Const,
    G: tl.Const,
    D: tl.Const,
    P: tl.Const,
):
    """`decode_merge_kv` of heads that have no norm."""
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
        tl.store(k_cache, (b, slot, head, 0), tl.reshape(tl.astype(rotated_low(low, high, cos, sin), E), (1, 1, 1, D // 2)))
        tl.store(k_cache, (b, slot, head, 1), tl.reshape(tl.astype(rotated_high(low, high, cos, sin), E), (1, 1, 1, D // 2)))
        value = tl.load(qkv, offset=(b, (G + 1) * HKV + head, 0), shape=(1, 1, D))
        tl.store(v_cache, (b, slot, head, 0), tl.reshape(value, (1, 1, 1, D)))
