"""From the merged QKV projection to attention: norm of each query and key head, rotary embedding, codes to the KV cache."""

import tilec as tl

from .cache_codes import coded, greatest, scale_of
from .dims import HKV, D, E, T
from .rotary import normed_scale, rotated_high, rotated_low


class HEADS(tl.Dim):
    """heads in a merged row: queries, then keys, then values"""


class HQ(tl.Dim):
    """query heads"""


class S(tl.Dim):
    """slots of the cache"""


class P(tl.Dim):
    """positions in the table"""


@tl.kernel
def qk_norm_rope_kv_c8(
    qkv: tl.In[E, T, HEADS, D],
    q_weight: tl.In[E, D],
    k_weight: tl.In[E, D],
    table: tl.In[tl.f32, P, D],
    positions: tl.In[tl.i32, T],
    slots: tl.In[tl.i32, T],
    q: tl.Out[E, T, HQ, D],
    k_cache: tl.InOut[tl.f8e4m3, S, HKV, D],
    k_scales: tl.InOut[tl.f32, S, HKV],
    v_cache: tl.InOut[tl.f8e4m3, S, HKV, D],
    v_scales: tl.InOut[tl.f32, S, HKV],
    eps: tl.f32,
    *,
    E: tl.Const,
    D: tl.Const,
    GROUP: tl.Const,
):
    """`qk_norm_rope_kv` of a cache of codes: key and value of token t go to slot `slots[t]`, as codes and a scale a head."""
    tl.grid(T, HEADS // GROUP)
    tl.requires(HQ + 2 * HKV == HEADS and HQ % GROUP == 0 and HKV % GROUP == 0)
    tl.values(positions, 0, P)
    tl.values(slots, 0, S, distinct=True)
    t, group = tl.bid(0), tl.bid(1)
    slot = tl.load(slots, t)
    first_key, first_value = HQ // GROUP, (HQ + HKV) // GROUP
    if group < first_value:
        low = tl.load(qkv, (t, group, 0), shape=(1, GROUP, D // 2)).astype(tl.f32)
        high = tl.load(qkv, (t, group, 1), shape=(1, GROUP, D // 2)).astype(tl.f32)
        position = tl.load(positions, t)
        cos = tl.load(table, (position, 0), shape=(1, D // 2))[:, None, :]
        sin = tl.load(table, (position, 1), shape=(1, D // 2))[:, None, :]
        if group < first_key:
            w_low, w_high = tl.load(q_weight, 0, shape=D // 2).astype(tl.f32), tl.load(q_weight, 1, shape=D // 2).astype(tl.f32)
            scale = normed_scale(low, high, D, eps)
            a, b = low * scale * w_low[None, None, :], high * scale * w_high[None, None, :]
            tl.store(q, (t, group, 0), tl.astype(rotated_low(a, b, cos, sin), E))
            tl.store(q, (t, group, 1), tl.astype(rotated_high(a, b, cos, sin), E))
        else:
            w_low, w_high = tl.load(k_weight, 0, shape=D // 2).astype(tl.f32), tl.load(k_weight, 1, shape=D // 2).astype(tl.f32)
            scale = normed_scale(low, high, D, eps)
            a, b = low * scale * w_low[None, None, :], high * scale * w_high[None, None, :]
            key_low, key_high = rotated_low(a, b, cos, sin), rotated_high(a, b, cos, sin)
            k_scale = scale_of(tl.maximum(greatest(key_low), greatest(key_high)))
            tl.store(k_cache, (slot, group - first_key, 0), coded(key_low, k_scale))
            tl.store(k_cache, (slot, group - first_key, 1), coded(key_high, k_scale))
            tl.store(k_scales, (slot, group - first_key), k_scale)
    else:
        value = tl.load(qkv, (t, group, 0), shape=(1, GROUP, D)).astype(tl.f32)
        v_scale = scale_of(greatest(value))
        tl.store(v_cache, (slot, group - first_value, 0), coded(value, v_scale))
        tl.store(v_scales, (slot, group - first_value), v_scale)
