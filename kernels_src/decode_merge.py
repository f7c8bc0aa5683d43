"""Combine what the parts of `decode_attention` found (Dao et al., Flash-Decoding)."""

import tilec as tl

from .dims import HKV, B, D, E, G, P


@tl.kernel
def decode_merge(
    partial: tl.In[tl.f32, B, P, HKV, G, D],
    maxima: tl.In[tl.f32, B, P, HKV, G],
    sums: tl.In[tl.f32, B, P, HKV, G],
    out: tl.Out[E, B, HKV, G, D],
    *,
    E: tl.Const,
    D: tl.Const,
    P: tl.Const,
):
    """`out = sum_p(w_p * partial_p) / sum_p(w_p * sums_p)` with `w_p = 2 ** (maxima_p - max(maxima))`; one head per block."""
    tl.grid(G, HKV, B)
    member, head, b = tl.bid(0), tl.bid(1), tl.bid(2)
    acc = tl.reshape(tl.load(partial, (b, 0, head, member, 0), shape=(1, P, 1, 1, D)), (P, D))
    top = tl.reshape(tl.load(maxima, (b, 0, head, member), shape=(1, P, 1, 1)), (P,))
    part = tl.reshape(tl.load(sums, (b, 0, head, member), shape=(1, P, 1, 1)), (P,))
    weight = tl.exp2(top - tl.max(top, axis=0), fast=True)
    mean = tl.sum(acc * weight[:, None], axis=0) / tl.sum(part * weight, axis=0)
    tl.store(out, (b, head, member, 0), tl.reshape(tl.astype(mean, E), (1, 1, 1, D)))
