"""Attention of one new token per sequence over a long KV cache, the cache split among blocks (Dao et al., Flash-Decoding)."""

import tilec
from tilec import (
    Const,
    Dim,
    Element,
    In,
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


class P(Dim):
    """parts that a sequence is split into"""


@tilec.kernel
def decode_attention(
    q: In[E, B, HKV, G, D],
    k_cache: In[E, B, S, HKV, D],
    v_cache: In[E, B, S, HKV, D],
    lengths: In[i32, B],
    partial: Out[f32, B, P, HKV, G, D],
    maxima: Out[f32, B, P, HKV, G],
    sums: Out[f32, B, P, HKV, G],
    scale: f32,
    *,
    E: Const,
    D: Const,
    BN: Const,
):
    """Sequence b has `lengths[b]` slots filled; part p takes every P-th tile of BN of them.

    Of its tiles a part gives, per query head, the maximum of `q @ k.T * scale` in units of log 2, the sum of
    `2 ** (score - maximum)` and the sum of values with these weights, for `decode_merge`; -inf, 0 and 0 where it has none.
    A group's heads are the eight columns of a product. `scale` is positive. Slots past the end of a sequence are multiplied by
    zero, so they must hold finite numbers.
    """
    grid(P, HKV, B)
    requires(G <= 8 and P <= 4096 and S % BN == 0 and S <= 536870912)
    values(lengths, 1, S + 1)
    part, head, b = bid(0), bid(1), bid(2)
    length = load(lengths, b)
    query = reshape(load(q, (b, head, 0, 0), shape=(1, 1, 8, D), pad=0), (8, D)).T
    log2_scale = scale * 1.4426950408889634
    top = full((8,), -inf, f32)
    total = zeros((8,), f32)
    acc = zeros((D, 8), f32)
    for j in range(part, cdiv(length, BN), P):
        k = reshape(load(k_cache, (b, j, head, 0), shape=(1, BN, 1, D)), (BN, D))
        v = reshape(load(v_cache, (b, j, head, 0), shape=(1, BN, 1, D)), (BN, D))
        s = mma(k, query, zeros((BN, 8), f32))
        s = where((j * BN + arange(BN))[:, None] < length, s, -inf)
        higher = maximum(top, max(s, axis=0) * log2_scale)
        p = exp2(s * log2_scale - higher[None, :])
        shrink = exp2(top - higher)
        total = total * shrink + sum(p, axis=0)
        acc = mma(v.T, astype(p, E), acc * shrink[None, :])
        top = higher
    store(partial, (b, part, head, 0, 0), reshape(acc.T, (1, 1, 1, 8, D)), mask=True)
    store(maxima, (b, part, head, 0), reshape(top, (1, 1, 1, 8)), mask=True)
    store(sums, (b, part, head, 0), reshape(total, (1, 1, 1, 8)), mask=True)
