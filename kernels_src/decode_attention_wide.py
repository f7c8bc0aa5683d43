"""`decode_attention` of up to sixteen query heads of a key head, which are the columns of a product."""

import tilec as tl

from .dims import HKV, B, D, E, G, P, S


@tl.kernel
def decode_attention_wide(
    q: tl.In[E, B, HKV, G, D],
    k_cache: tl.In[E, B, S, HKV, D],
    v_cache: tl.In[E, B, S, HKV, D],
    lengths: tl.In[tl.i32, B],
    partial: tl.Out[tl.f32, B, P, HKV, G, D],
    maxima: tl.Out[tl.f32, B, P, HKV, G],
    sums: tl.Out[tl.f32, B, P, HKV, G],
    scale: tl.f32,
    *,
    E: tl.Const,
    D: tl.Const,
    BN: tl.Const,
):
    """Sequence b has `lengths[b]` slots filled; part p takes every P-th tile of BN of them.

    Of its tiles a part gives, per query head, the maximum of `q @ k.T * scale` in units of log 2, the sum of
    `2 ** (score - maximum)` and the sum of values with these weights, for `decode_merge`; -inf, 0 and 0 where it has none.
    `scale` is positive. Slots past the end of a sequence are multiplied by zero, so they must hold finite numbers.
    """
    tl.grid(P, HKV, B)
    tl.requires(G <= 16 and P <= 4096 and S % BN == 0 and S <= 536870912)
    tl.values(lengths, 1, S + 1)
    part, head, b = tl.bid(0), tl.bid(1), tl.bid(2)
    length = tl.load(lengths, b)
    query = tl.reshape(tl.load(q, (b, head, 0, 0), shape=(1, 1, 16, D), pad=0), (16, D)).T
    log2_scale = scale * 1.4426950408889634
    top = tl.full((16,), -tl.inf, tl.f32)
    total = tl.zeros((16,), tl.f32)
    acc = tl.zeros((D, 16), tl.f32)
    for j in range(part, tl.cdiv(length, BN), P):
        k = tl.reshape(tl.load(k_cache, (b, j, head, 0), shape=(1, BN, 1, D)), (BN, D))
        v = tl.reshape(tl.load(v_cache, (b, j, head, 0), shape=(1, BN, 1, D)), (BN, D))
        s = tl.mma(k, query, tl.zeros((BN, 16), tl.f32))
        s = tl.where((j * BN + tl.arange(BN))[:, None] < length, s, -tl.inf)
        higher = tl.maximum(top, tl.max(s, axis=0) * log2_scale)
        p = tl.exp2(s * log2_scale - higher[None, :], fast=True)
        shrink = tl.exp2(top - higher, fast=True)
        total = total * shrink + tl.sum(p, axis=0)
        acc = tl.mma(v.T, tl.astype(p, E), acc * shrink[None, :])
        top = higher
    tl.store(partial, (b, part, head, 0, 0), tl.reshape(acc.T, (1, 1, 1, 16, D)), mask=True)
    tl.store(maxima, (b, part, head, 0), tl.reshape(top, (1, 1, 1, 16)), mask=True)
    tl.store(sums, (b, part, head, 0), tl.reshape(total, (1, 1, 1, 16)), mask=True)
