"""Causal attention of many tokens at once on tensor cores, in one pass over the KV cache (Dao, FlashAttention-2, 2023)."""

import tilec as tl

from .dims import HKV, D, E, G, T


class S(tl.Dim):
    """slots of the cache"""


@tl.kernel
def flash_attention(
    q: tl.In[E, T, HKV, G, D],
    k_cache: tl.In[E, S, HKV, D],
    v_cache: tl.In[E, S, HKV, D],
    out: tl.Out[E, T, HKV, G, D],
    past: tl.i32,
    scale: tl.f32,
    *,
    E: tl.Const,
    D: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
):
    """Token t, at position `past + t`, attends to slots 0 to `past + t`: `softmax(q @ k.T * scale) @ v` in f32, `scale` > 0.

    The cache holds keys and values of the tokens themselves too. Its slots past them are multiplied by zero, so they must
    hold finite numbers. Blocks take the longest rows first.
    """
    tl.grid(G, HKV, tl.cdiv(T, BM))
    tl.requires(past >= 0 and past + T <= S and S % BN == 0 and S <= 536870912)
    member, head, m = tl.bid(0), tl.bid(1), tl.cdiv(T, BM) - 1 - tl.bid(2)
    first = past + m * BM
    query = tl.reshape(tl.load(q, (m, head, member, 0), shape=(BM, 1, 1, D), pad=0), (BM, D))
    log2_scale = scale * 1.4426950408889634
    top = tl.full((BM,), -tl.inf, tl.f32)
    total = tl.zeros((BM,), tl.f32)
    acc = tl.zeros((BM, D), tl.f32)
    whole = (first + 1) // BN
    for j in range(tl.cdiv(min(first + BM, past + T), BN)):
        k = tl.reshape(tl.load(k_cache, (j, head, 0), shape=(BN, 1, D)), (BN, D))
        v = tl.reshape(tl.load(v_cache, (j, head, 0), shape=(BN, 1, D)), (BN, D))
        s = tl.mma(query, k.T, tl.zeros((BM, BN), tl.f32))
        if j >= whole:
            seen = (j * BN + tl.arange(BN))[None, :] <= (first + tl.arange(BM))[:, None]
            s = tl.where(seen, s, -tl.inf)
        higher = tl.maximum(top, tl.max(s, axis=1) * log2_scale)
        p = tl.exp2(s * log2_scale - higher[:, None], fast=True)
        shrink = tl.exp2(top - higher, fast=True)
        total = total * shrink + tl.sum(p, axis=1)
        acc = tl.mma(tl.astype(p, E), v, acc * shrink[:, None])
        top = higher
    share = 1.0 / total
    tl.store(out, (m, head, member, 0), tl.reshape(tl.astype(acc * share[:, None], E), (BM, 1, 1, D)), mask=True)
