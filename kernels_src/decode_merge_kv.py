"""End of attention at decode: combine what its parts found, and put the new token's key and value into the cache."""

from typing import Literal

from rotary import normed_scale, rotated_high, rotated_low

import tilec
from tilec import (
    Const,
    Dim,
    Element,
    In,
    InOut,
    Out,
    astype,
    bid,
    exp2,
    f32,
    grid,
    i32,
    load,
    max,
    requires,
    reshape,
    resident,
    store,
    sum,
    values,
)


class E(Element):
    """bf16 or f16"""


class B(Dim):
    """number of sequences"""


class HKV(Dim):
    """key heads, and value heads"""


class G(Dim):
    """query heads that share a key head"""


class D(Dim):
    """elements of a head"""


class S(Dim):
    """slots of a sequence"""


class R(Dim):
    """positions in the table"""


class P(Dim):
    """parts that a sequence is split into"""


@tilec.kernel
def decode_merge_kv(
    partial: In[f32, B, P, HKV, G, D],
    maxima: In[f32, B, P, HKV, G],
    sums: In[f32, B, P, HKV, G],
    qkv: In[E, B, Literal["(G + 2) * HKV"], D],
    k_weight: In[E, D],
    table: In[f32, R, D],
    positions: In[i32, B],
    slots: In[i32, B],
    out: Out[E, B, HKV, G, D],
    k_cache: InOut[E, B, S, HKV, D],
    v_cache: InOut[E, B, S, HKV, D],
    eps: f32,
    *,
    E: Const,
    G: Const,
    D: Const,
    P: Const,
):
    """`out` is what `decode_merge` makes of the parts, one head per block; key and value of each head go to slot `slots[b]`, as
    `qk_norm_rope_kv` makes them of `qkv`, by one block more for each key head. Other slots stay as they are."""
    grid(G + 1, HKV, B)
    requires(HKV <= 65536)
    values(positions, 0, R)
    values(slots, 0, S)
    resident(k_weight, table, positions, slots)
    member, head, b = bid(0), bid(1), bid(2)
    slot, position = load(slots, b), load(positions, b)
    cos = load(table, (position, 0), shape=(1, D // 2))[:, None, :]
    sin = load(table, (position, 1), shape=(1, D // 2))[:, None, :]
    w_low, w_high = load(k_weight, 0, shape=D // 2).astype(f32), load(k_weight, 1, shape=D // 2).astype(f32)
    if member < G:
        acc = reshape(load(partial, (b, 0, head, member, 0), shape=(1, P, 1, 1, D)), (P, D))
        top = reshape(load(maxima, (b, 0, head, member), shape=(1, P, 1, 1)), (P,))
        part = reshape(load(sums, (b, 0, head, member), shape=(1, P, 1, 1)), (P,))
        weight = exp2(top - max(top, axis=0))
        mean = sum(acc * weight[:, None], axis=0) / sum(part * weight, axis=0)
        store(out, (b, head, member, 0), reshape(astype(mean, E), (1, 1, 1, D)))
    else:
        low = load(qkv, offset=(b, G * HKV + head, 0), shape=(1, 1, D // 2)).astype(f32)
        high = load(qkv, offset=(b, G * HKV + head, D // 2), shape=(1, 1, D // 2)).astype(f32)
        factor = normed_scale(low, high, D, eps)
        low, high = low * factor * w_low[None, None, :], high * factor * w_high[None, None, :]
        store(k_cache, (b, slot, head, 0), reshape(astype(rotated_low(low, high, cos, sin), E), (1, 1, 1, D // 2)))
        store(k_cache, (b, slot, head, 1), reshape(astype(rotated_high(low, high, cos, sin), E), (1, 1, 1, D // 2)))
        value = load(qkv, offset=(b, (G + 1) * HKV + head, 0), shape=(1, 1, D))
        store(v_cache, (b, slot, head, 0), reshape(value, (1, 1, 1, D)))
