"""Combine what the chunks of `paged_decode_attention` found (Dao et al., Flash-Decoding)."""

from typing import Literal

import tilec as tl

from .dims import HKV, D, E, G, T
from .paged_dims import ITEMS


@tl.kernel
def paged_merge(
    partial: tl.In[tl.f32, ITEMS, HKV, G, D],
    maxima: tl.In[tl.f32, ITEMS, HKV, G],
    sums: tl.In[tl.f32, ITEMS, HKV, G],
    starts: tl.In[tl.i32, Literal["T + 1"]],
    out: tl.Out[E, T, HKV, G, D],
    *,
    E: tl.Const,
    D: tl.Const,
    ROWS: tl.Const,
):
    """`out[b] = sum(w * partial) / sum(w * sums)` over items `starts[b]` to `starts[b + 1] - 1`, with `w = 2 ** (maxima -
    max(maxima))`; 0 for a row without items. A block has a head, and reads ROWS items at a time, in their order."""
    tl.requires(ITEMS <= 1073741824, HKV * G <= 2147483647)
    tl.grid(HKV * G, T)
    head, member, b = tl.bid(0) // G, tl.bid(0) % G, tl.bid(1)
    begin, end = min(max(tl.load(starts, b), 0), ITEMS), min(tl.load(starts, b + 1), ITEMS)
    top = tl.full((1,), -tl.inf, tl.f32)
    acc = tl.zeros((D,), tl.f32)
    total = tl.zeros((1,), tl.f32)
    for i in range(begin, end, ROWS):
        mine = i + tl.arange(ROWS) < end
        high = tl.load(maxima, offset=(i, head, member), shape=(ROWS, 1, 1), pad=-tl.inf).reshape((ROWS,))
        part = tl.load(sums, offset=(i, head, member), shape=(ROWS, 1, 1), pad=0).reshape((ROWS,))
        rows = tl.load(partial, offset=(i, head, member, 0), shape=(ROWS, 1, 1, D), pad=0).reshape((ROWS, D))
        high = tl.where(mine, high, -tl.inf)
        higher = tl.maximum(top, tl.max(high, axis=0, keepdims=True))
        weight, shrink = tl.exp2(high - higher, fast=True), tl.exp2(top - higher, fast=True)
        total = total * shrink + tl.sum(tl.where(mine, part * weight, 0.0), axis=0, keepdims=True)
        acc = acc * shrink + tl.sum(tl.where(mine[:, None], rows * weight[:, None], 0.0), axis=0)
        top = higher
    share = tl.where(total > 0, 1.0 / total, 0.0)
    tl.store(out, (b, head, member, 0), (acc * share).astype(E).reshape((1, 1, 1, D)))
