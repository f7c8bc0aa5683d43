"""From the merged QKV projection to attention: norm of each query and key head, rotary embedding, write to the KV cache."""

from rotary import normed_scale, rotated_high, rotated_low

import tilec
from tilec import Const, Dim, Element, In, InOut, Out, astype, bid, f32, grid, i32, load, requires, store, values


class E(Element):
    """bf16 or f16"""


class T(Dim):
    """number of tokens"""


class HEADS(Dim):
    """heads in a merged row: queries, then keys, then values"""


class HQ(Dim):
    """query heads"""


class HKV(Dim):
    """key heads, and value heads"""


class D(Dim):
    """elements of a head"""


class S(Dim):
    """slots of the cache"""


class P(Dim):
    """positions in the table"""


@tilec.kernel
def qk_norm_rope_kv(
    qkv: In[E, T, HEADS, D],
    q_weight: In[E, D],
    k_weight: In[E, D],
    table: In[f32, P, D],
    positions: In[i32, T],
    slots: In[i32, T],
    q: Out[E, T, HQ, D],
    k_cache: InOut[E, S, HKV, D],
    v_cache: InOut[E, S, HKV, D],
    eps: f32,
    *,
    E: Const,
    D: Const,
    GROUP: Const,
):
    """One token and GROUP heads per block: 1 at decode, 8 at prefill.

    A row of `table` is the cosines, then the sines, of one position's D / 2 angles. Token t is at `positions[t]`; its key and
    value go to slot `slots[t]`, which no other token of the launch has. Other slots stay as they are.
    """
    grid(T, HEADS // GROUP)
    requires(HQ + 2 * HKV == HEADS and HQ % GROUP == 0 and HKV % GROUP == 0)
    values(positions, 0, P)
    values(slots, 0, S, distinct=True)
    t, group = bid(0), bid(1)
    slot = load(slots, t)
    first_key, first_value = HQ // GROUP, (HQ + HKV) // GROUP
    if group < first_value:
        low = load(qkv, (t, group, 0), shape=(1, GROUP, D // 2)).astype(f32)
        high = load(qkv, (t, group, 1), shape=(1, GROUP, D // 2)).astype(f32)
        position = load(positions, t)
        cos = load(table, (position, 0), shape=(1, D // 2))[:, None, :]
        sin = load(table, (position, 1), shape=(1, D // 2))[:, None, :]
        if group < first_key:
            w_low, w_high = load(q_weight, 0, shape=D // 2).astype(f32), load(q_weight, 1, shape=D // 2).astype(f32)
            scale = normed_scale(low, high, D, eps)
            a, b = low * scale * w_low[None, None, :], high * scale * w_high[None, None, :]
            store(q, (t, group, 0), astype(rotated_low(a, b, cos, sin), E))
            store(q, (t, group, 1), astype(rotated_high(a, b, cos, sin), E))
        else:
            w_low, w_high = load(k_weight, 0, shape=D // 2).astype(f32), load(k_weight, 1, shape=D // 2).astype(f32)
            scale = normed_scale(low, high, D, eps)
            a, b = low * scale * w_low[None, None, :], high * scale * w_high[None, None, :]
            store(k_cache, (slot, group - first_key, 0), astype(rotated_low(a, b, cos, sin), E))
            store(k_cache, (slot, group - first_key, 1), astype(rotated_high(a, b, cos, sin), E))
    else:
        store(v_cache, (slot, group - first_value, 0), load(qkv, (t, group, 0), shape=(1, GROUP, D)))
