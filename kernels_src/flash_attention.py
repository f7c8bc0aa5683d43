"""Causal attention of many tokens at once on tensor cores, in one pass over the KV cache (Dao, FlashAttention-2, 2023)."""

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
    where,
    zeros,
)


class E(Element):
    """bf16 or f16"""


class T(Dim):
    """number of tokens"""


class HKV(Dim):
    """key heads, and value heads"""


class G(Dim):
    """query heads that share a key head"""


class D(Dim):
    """elements of a head"""


class S(Dim):
    """slots of the cache"""


@tilec.kernel
def flash_attention(
    q: In[E, T, HKV, G, D],
    k_cache: In[E, S, HKV, D],
    v_cache: In[E, S, HKV, D],
    out: Out[E, T, HKV, G, D],
    past: i32,
    scale: f32,
    *,
    E: Const,
    D: Const,
    BM: Const,
    BN: Const,
):
    """Token t, at position `past + t`, attends to slots 0 to `past + t`: `softmax(q @ k.T * scale) @ v` in f32, `scale` > 0.

    The cache holds keys and values of the tokens themselves too. Its slots past them are multiplied by zero, so they must
    hold finite numbers. Blocks take the longest rows first.
    """
    grid(G, HKV, cdiv(T, BM))
    requires(past >= 0 and past + T <= S and S % BN == 0 and S <= 536870912)
    member, head, m = bid(0), bid(1), cdiv(T, BM) - 1 - bid(2)
    first = past + m * BM
    query = reshape(load(q, (m, head, member, 0), shape=(BM, 1, 1, D), pad=0), (BM, D))
    log2_scale = scale * 1.4426950408889634
    top = full((BM,), -inf, f32)
    total = zeros((BM,), f32)
    acc = zeros((BM, D), f32)
    whole = (first + 1) // BN
    for j in range(cdiv(min(first + BM, past + T), BN)):
        k = reshape(load(k_cache, (j, head, 0), shape=(BN, 1, D)), (BN, D))
        v = reshape(load(v_cache, (j, head, 0), shape=(BN, 1, D)), (BN, D))
        s = mma(query, k.T, zeros((BM, BN), f32))
        if j >= whole:
            seen = (j * BN + arange(BN))[None, :] <= (first + arange(BM))[:, None]
            s = where(seen, s, -inf)
        higher = maximum(top, max(s, axis=1) * log2_scale)
        p = exp2(s * log2_scale - higher[:, None])
        shrink = exp2(top - higher)
        total = total * shrink + sum(p, axis=1)
        acc = mma(astype(p, E), v, acc * shrink[:, None])
        top = higher
    share = 1.0 / total
    store(out, (m, head, member, 0), reshape(astype(acc * share[:, None], E), (BM, 1, 1, D)), mask=True)
