"""Combine what the parts of `decode_attention` found (Dao et al., Flash-Decoding)."""

import tilec
from tilec import Const, Dim, Element, In, Out, astype, bid, exp2, f32, grid, load, max, reshape, store, sum


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


class P(Dim):
    """parts that a sequence is split into"""


@tilec.kernel
def decode_merge(
    partial: In[f32, B, P, HKV, G, D],
    maxima: In[f32, B, P, HKV, G],
    sums: In[f32, B, P, HKV, G],
    out: Out[E, B, HKV, G, D],
    *,
    E: Const,
    D: Const,
    P: Const,
):
    """`out = sum_p(w_p * partial_p) / sum_p(w_p * sums_p)` with `w_p = 2 ** (maxima_p - max(maxima))`; one head per block."""
    grid(G, HKV, B)
    member, head, b = bid(0), bid(1), bid(2)
    acc = reshape(load(partial, (b, 0, head, member, 0), shape=(1, P, 1, 1, D)), (P, D))
    top = reshape(load(maxima, (b, 0, head, member), shape=(1, P, 1, 1)), (P,))
    part = reshape(load(sums, (b, 0, head, member), shape=(1, P, 1, 1)), (P,))
    weight = exp2(top - max(top, axis=0))
    mean = sum(acc * weight[:, None], axis=0) / sum(part * weight, axis=0)
    store(out, (b, head, member, 0), reshape(astype(mean, E), (1, 1, 1, D)))
