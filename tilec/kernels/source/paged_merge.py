"""Combine what the parts of `paged_attention` found (Dao et al., Flash-Decoding)."""

from attention_parts import HKV, PARTS, B, D, E, G

import tilec as tl

MOST = 128


@tl.kernel
def paged_merge(
    partial: tl.In[tl.f32, B, PARTS, HKV, G, D],
    maxima: tl.In[tl.f32, B, PARTS, HKV, G],
    sums: tl.In[tl.f32, B, PARTS, HKV, G],
    out: tl.Out[E, B, HKV, G, D],
    *,
    E: tl.Const,
    D: tl.Const,
    ROWS: tl.Const,
):
    """`out = sum(w * partial) / sum(w * sums)` over parts, with `w = 2 ** (maxima - max(maxima))`; 0 where all sums are 0.

    A block has a head, and reads ROWS parts at a time."""
    tl.requires(PARTS <= MOST, HKV * G <= 2147483647)
    tl.grid(HKV * G, B)
    head, member, b = tl.bid(0) // G, tl.bid(0) % G, tl.bid(1)
    top = tl.max(tl.load(maxima, (b, 0, head, member), shape=(1, MOST, 1, 1), pad=-tl.inf))
    acc = tl.zeros((D,), tl.f32)
    total = tl.zeros((ROWS,), tl.f32)
    for i in range(tl.cdiv(PARTS, ROWS)):
        high = tl.load(maxima, (b, i, head, member), shape=(1, ROWS, 1, 1), pad=-tl.inf).reshape((ROWS,))
        part = tl.load(sums, (b, i, head, member), shape=(1, ROWS, 1, 1), pad=0).reshape((ROWS,))
        rows = tl.load(partial, (b, i, head, member, 0), shape=(1, ROWS, 1, 1, D), pad=0).reshape((ROWS, D))
        weight = tl.exp2(high - top, fast=True)
        total = total + part * weight
        acc = acc + tl.sum(rows * weight[:, None], axis=0)
    whole = tl.sum(total)
    share = tl.where(whole > 0, 1.0 / whole, 0.0)
    tl.store(out, (b, head, member, 0), (acc * share).astype(E).reshape((1, 1, 1, D)))
