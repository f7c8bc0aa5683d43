"""Combine what the parts of `decode_attention` found (Dao et al., Flash-Decoding)."""

import tilec as tl

from .cache_attention import merged
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
    mean = merged(partial, maxima, sums, b, head, member, P, D)
    tl.store(out, (b, head, member, 0), tl.reshape(tl.astype(mean, E), (1, 1, 1, D)))
