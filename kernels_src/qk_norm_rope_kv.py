"""From the merged QKV projection to attention: norm of each query and key head, rotary embedding, write to the KV cache."""

import tilec as tl

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
def qk_norm_rope_kv(
    qkv: tl.In[E, T, HEADS, D],
    q_weight: tl.In[E, D],
    k_weight: tl.In[E, D],
    table: tl.In[tl.f32, P, D],
    positions: tl.In[tl.i32, T],
    slots: tl.In[tl.i32, T],
    q: tl.Out[E, T, HQ, D],
    k_cache: tl.InOut[E, S, HKV, D],
    v_cache: tl.InOut[E, S, HKV, D],
    eps: tl.f32,
    *,
    E: tl.Const,
    D: tl.Const,
    GROUP: tl.Const,
):
    """One token and GROUP heads per block: 1 at decode, 8 at prefill.

    A row of `table` is the cosines, then the sines, of one position's D / 2 angles. Token t is at `positions[t]`; its key and
    value go to slot `slots[t]`, which no other token of the launch has. Other slots stay as they are.
    """
    tl.grid(T, HEADS // GROUP)
    tl.requires(HQ + 2 * HKV == HEADS and HQ % GROUP == 0 and HKV % GROUP == 0)
    tl.values(positions, 0, P)
    tl.values(slots, 0, S, distinct=True)
    # What the host sent is read before the kernel waits for the projection.
    tl.resident(q_weight, k_weight, table, positions, slots)
    t, group = tl.bid(0), tl.bid(1)
    slot, position = tl.load(slots, t), tl.load(positions, t)
    cos = tl.load(table, (position, 0), shape=(1, D // 2))[:, None, :]
    sin = tl.load(table, (position, 1), shape=(1, D // 2))[:, None, :]
    first_key, first_value = HQ // GROUP, (HQ + HKV) // GROUP
    if group < first_value:
        low = tl.load(qkv, (t, group, 0), shape=(1, GROUP, D // 2)).astype(tl.f32)
        high = tl.load(qkv, (t, group, 1), shape=(1, GROUP, D // 2)).astype(tl.f32)
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
            tl.store(k_cache, (slot, group - first_key, 0), tl.astype(rotated_low(a, b, cos, sin), E))
            tl.store(k_cache, (slot, group - first_key, 1), tl.astype(rotated_high(a, b, cos, sin), E))
    else:
        tl.store(v_cache, (slot, group - first_value, 0), tl.load(qkv, (t, group, 0), shape=(1, GROUP, D)))
