"""`paged_merge` of up to sixteen query heads of a key head."""

from typing import Literal

import tilec as tl

from .dims import HKV, D, E, G, T
from .paged_dims import ITEMS


@tl.kernel
def paged_merge_wide(
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
    """`out[b]` of items `starts[b]` to `starts[b + 1] - 1`, as `paged_merge` has it; 0 for a row without items."""
    tl.requires(G <= 16, ITEMS <= 1073741824, HKV <= 65535)
    tl.grid(T, HKV)
    b, head = tl.bid(0), tl.bid(1)
    begin, end = min(max(tl.load(starts, b), 0), ITEMS), min(tl.load(starts, b + 1), ITEMS)
    top = tl.full((16,), -1e30, tl.f32)
    acc = tl.zeros((16, D), tl.f32)
    total = tl.zeros((16,), tl.f32)
    for i in range(begin, end, ROWS):
        mine = i + tl.arange(ROWS) < end
        rows = tl.load(partial, offset=(i, head, 0, 0), shape=(ROWS, 1, 16, D), pad=0).reshape((ROWS, 16, D))
        high = tl.load(maxima, offset=(i, head, 0), shape=(ROWS, 1, 16), pad=-1e30).reshape((ROWS, 16))
        part = tl.load(sums, offset=(i, head, 0), shape=(ROWS, 1, 16), pad=0).reshape((ROWS, 16))
        high = tl.where(mine[:, None], high, -1e30)
        higher = tl.maximum(top, tl.max(high, axis=0))
        weight, shrink = tl.exp2(high - higher[None, :], fast=True), tl.exp2(top - higher, fast=True)
        total = total * shrink + tl.sum(tl.where(mine[:, None], part * weight, 0.0), axis=0)
        weighted = tl.where(mine[:, None, None], rows * weight[:, :, None], 0.0)
        acc = acc * shrink[:, None] + tl.sum(weighted, axis=0)
        top = higher
    share = tl.where(total > 0, 1.0 / total, 0.0)
    tl.store(out, (b, head, 0, 0), (acc * share[:, None]).astype(E).reshape((1, 1, 16, D)), mask=True)
