"""Attention of a new token per sequence from its QKV projection over a short cache, which the token's key and value go into."""

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
    arange,
    astype,
    bid,
    cdiv,
    exp2,
    f32,
    full,
    grid,
    i32,
    inf,
    load,
    max,
    maximum,
    mma,
    requires,
    reshape,
    resident,
    store,
    sum,
    values,
    where,
    zeros,
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


@tilec.kernel
def rotary_decode_attention_kv(
    qkv: In[E, B, Literal["(G + 2) * HKV"], D],
    q_weight: In[E, D],
    k_weight: In[E, D],
    table: In[f32, R, D],
    positions: In[i32, B],
    lengths: In[i32, B],
    out: Out[E, B, HKV, G, D],
    k_cache: InOut[E, B, S, HKV, D],
    v_cache: InOut[E, B, S, HKV, D],
    eps: f32,
    scale: f32,
    *,
    E: Const,
    G: Const,
    D: Const,
    BN: Const,
):
    """What `rotary_decode_attention` and `decode_merge_kv` make together, by one block for each key head of a sequence: no part
    waits for another, which pays where a cache is short. Right for any length.

    Sequence b has `lengths[b]` slots once its new token has one, the last; `positions[b]` is the token's place in `table`. Key
    and value of the token go to its slot; other slots stay as they are.
    """
    grid(HKV, B)
    requires(G + 2 * HKV >= 8 and S % BN == 0 and S <= 536870912 and HKV <= 65536)
    values(positions, 0, R)
    values(lengths, 1, S + 1)
    resident(q_weight, k_weight, table, positions, lengths, k_cache, v_cache)
    head, b = bid(0), bid(1)
    slot, position = load(lengths, b) - 1, load(positions, b)
    cos = load(table, (position, 0), shape=(1, D // 2))[:, None, :]
    sin = load(table, (position, 1), shape=(1, D // 2))[:, None, :]
    q_low, q_high = load(q_weight, 0, shape=D // 2).astype(f32), load(q_weight, 1, shape=D // 2).astype(f32)
    k_low, k_high = load(k_weight, 0, shape=D // 2).astype(f32), load(k_weight, 1, shape=D // 2).astype(f32)
    low = load(qkv, offset=(b, G * HKV + head, 0), shape=(1, 1, D // 2)).astype(f32)
    high = load(qkv, offset=(b, G * HKV + head, D // 2), shape=(1, 1, D // 2)).astype(f32)
    factor = normed_scale(low, high, D, eps)
    low, high = low * factor * k_low[None, None, :], high * factor * k_high[None, None, :]
    key_low, key_high = astype(rotated_low(low, high, cos, sin), E), astype(rotated_high(low, high, cos, sin), E)
    value = load(qkv, offset=(b, (G + 1) * HKV + head, 0), shape=(1, 1, D))
    low = load(qkv, offset=(b, head * G, 0), shape=(1, 8, D // 2)).astype(f32)
    high = load(qkv, offset=(b, head * G, D // 2), shape=(1, 8, D // 2)).astype(f32)
    factor = normed_scale(low, high, D, eps)
    low, high = low * factor * q_low[None, None, :], high * factor * q_high[None, None, :]
    query_low = reshape(astype(rotated_low(low, high, cos, sin), E), (8, D // 2))
    query_high = reshape(astype(rotated_high(low, high, cos, sin), E), (8, D // 2))
    log2_scale = scale * 1.4426950408889634
    new_low, new_high = reshape(key_low, (1, D // 2)).astype(f32), reshape(key_high, (1, D // 2)).astype(f32)
    top = (sum(query_low.astype(f32) * new_low, axis=1) + sum(query_high.astype(f32) * new_high, axis=1)) * log2_scale
    total = full((8,), 1.0, f32)
    acc = zeros((D, 8), f32) + reshape(value, (D,)).astype(f32)[:, None]
    for j in range(cdiv(slot, BN)):
        keys_low = reshape(load(k_cache, offset=(b, j * BN, head, 0), shape=(1, BN, 1, D // 2)), (BN, D // 2))
        keys_high = reshape(load(k_cache, offset=(b, j * BN, head, D // 2), shape=(1, BN, 1, D // 2)), (BN, D // 2))
        v = reshape(load(v_cache, (b, j, head, 0), shape=(1, BN, 1, D)), (BN, D))
        s = mma(keys_high, query_high.T, mma(keys_low, query_low.T, zeros((BN, 8), f32)))
        s = where((j * BN + arange(BN))[:, None] < slot, s, -inf)
        higher = maximum(top, max(s, axis=0) * log2_scale)
        p = exp2(s * log2_scale - higher[None, :])
        shrink = exp2(top - higher)
        total = total * shrink + sum(p, axis=0)
        acc = mma(v.T, astype(p, E), acc * shrink[None, :])
        top = higher
    store(out, (b, head, 0, 0), reshape(astype(acc / total[None, :], E).T, (1, 1, 8, D)), mask=True)
    store(k_cache, (b, slot, head, 0), reshape(key_low, (1, 1, 1, D // 2)))
    store(k_cache, (b, slot, head, 1), reshape(key_high, (1, 1, 1, D // 2)))
    store(v_cache, (b, slot, head, 0), reshape(value, (1, 1, 1, D)))
