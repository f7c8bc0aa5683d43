"""From the merged QKV projection to attention: rotary embedding of each query and key head, write to the KV cache."""

import tilec as tl

from .dims import HKV, D, E, R, T
from .rotary import rotated_high, rotated_low


class HEADS(tl.Dim):
    """heads in a merged row: queries, then keys, then values"""


class HQ(tl.Dim):
    """query heads"""


class S(tl.Dim):
    """slots of the cache"""


@tl.kernel
def rope_kv(
    qkv: tl.In[E, T, HEADS, D],
    table: tl.In[tl.f32, R, D],
    positions: tl.In[tl.i32, T],
    slots: tl.In[tl.i32, T],
    q: tl.Out[E, T, HQ, D],
    k_cache: tl.InOut[E, S, HKV, D],
    v_cache: tl.InOut[E, S, HKV, D],
    *,
    E: tl.Const,
    D: tl.Const,
    GROUP: tl.Const,
):
    """`qk_norm_rope_kv` of heads that have no norm."""
    tl.grid(T, HEADS // GROUP)
    tl.requires(HQ + 2 * HKV == HEADS and HQ % GROUP == 0 and HKV % GROUP == 0)
    tl.values(positions, 0, R)
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
        turned_low, turned_high = (
            tl.astype(rotated_low(low, high, cos, sin), E),
            tl.astype(rotated_high(low, high, cos, sin), E),
        )
        if group < first_key:
            tl.store(q, (t, group, 0), turned_low)
            tl.store(q, (t, group, 1), turned_high)
        else:
            tl.store(k_cache, (slot, group - first_key, 0), turned_low)
            tl.store(k_cache, (slot, group - first_key, 1), turned_high)
    else:
        tl.store(v_cache, (slot, group - first_value, 0), tl.load(qkv, (t, group, 0), shape=(1, GROUP, D)))
