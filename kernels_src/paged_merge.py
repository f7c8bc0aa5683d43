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
    HEADS: tl.Const,
):
    """`out[b] = sum(w * partial) / sum(w * sums)` over items `starts[b]` to `starts[b + 1] - 1`, with `w = 2 ** (maxima -
    max(maxima))`; 0 for a row without items. A block has the query heads of a key head, at most HEADS, and reads ROWS items at
    a time, from the row's first on: so nothing of a row depends on where its items begin."""
    tl.requires(G <= HEADS, ITEMS <= 1073741824, HKV <= 65535)
    tl.grid(T, HKV)
    b, head = tl.bid(0), tl.bid(1)
    begin, end = min(max(tl.load(starts, b), 0), ITEMS), min(tl.load(starts, b + 1), ITEMS)
    top = tl.full((HEADS,), -1e30, tl.f32)
    acc = tl.zeros((HEADS, D), tl.f32)
    total = tl.zeros((HEADS,), tl.f32)
    for i in range(begin, end, ROWS):
        mine = i + tl.arange(ROWS) < end
        rows = tl.load(partial, offset=(i, head, 0, 0), shape=(ROWS, 1, HEADS, D), pad=0).reshape((ROWS, HEADS, D))
        high = tl.load(maxima, offset=(i, head, 0), shape=(ROWS, 1, HEADS), pad=-1e30).reshape((ROWS, HEADS))
        part = tl.load(sums, offset=(i, head, 0), shape=(ROWS, 1, HEADS), pad=0).reshape((ROWS, HEADS))
        high = tl.where(mine[:, None], high, -1e30)
        higher = tl.maximum(top, tl.max(high, axis=0))
        weight, shrink = tl.exp2(high - higher[None, :], fast=True), tl.exp2(top - higher, fast=True)
        total = total * shrink + tl.sum(tl.where(mine[:, None], part * weight, 0.0), axis=0)
        weighted = tl.where(mine[:, None, None], rows * weight[:, :, None], 0.0)
        acc = acc * shrink[:, None] + tl.sum(weighted, axis=0)
        top = higher
    share = tl.where(total > 0, 1.0 / total, 0.0)
    tl.store(out, (b, head, 0, 0), (acc * share[:, None]).astype(E).reshape((1, 1, HEADS, D)), mask=True)
