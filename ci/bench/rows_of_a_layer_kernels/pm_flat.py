"""pm_flat"""
from typing import Literal

import tilec as tl

from .dims import D, E, T
from .paged_dims import ITEMS


class HQ(tl.Dim):
    """query heads"""


@tl.kernel
def pm_flat(
    partial: tl.In[tl.f32, ITEMS, HQ, D],
    maxima: tl.In[tl.f32, ITEMS, HQ],
    sums: tl.In[tl.f32, ITEMS, HQ],
    starts: tl.In[tl.i32, Literal["T + 1"]],
    out: tl.Out[E, T, HQ, D],
    *,
    E: tl.Const,
    D: tl.Const,
    ROWS: tl.Const,
    HEADS: tl.Const,
):
    """x"""
    tl.requires(ITEMS <= 1073741824, HQ % HEADS == 0, HQ // HEADS <= 65535)
    tl.grid(T, HQ // HEADS)
    b, head = tl.bid(0), tl.bid(1)
    begin, end = min(max(tl.load(starts, b), 0), ITEMS), min(tl.load(starts, b + 1), ITEMS)
    top = tl.full((HEADS,), -1e30, tl.f32)
    acc = tl.zeros((HEADS, D), tl.f32)
    total = tl.zeros((HEADS,), tl.f32)
    for i in range(begin, end, ROWS):
        mine = i + tl.arange(ROWS) < end
        rows = tl.load(partial, offset=(i, head * HEADS, 0), shape=(ROWS, HEADS, D), pad=0)
        high = tl.load(maxima, offset=(i, head * HEADS), shape=(ROWS, HEADS), pad=-1e30)
        part = tl.load(sums, offset=(i, head * HEADS), shape=(ROWS, HEADS), pad=0)
        high = tl.where(mine[:, None], high, -1e30)
        higher = tl.maximum(top, tl.max(high, axis=0))
        weight, shrink = tl.exp2(high - higher[None, :], fast=True), tl.exp2(top - higher, fast=True)
        total = total * shrink + tl.sum(tl.where(mine[:, None], part * weight, 0.0), axis=0)
        weighted = tl.where(mine[:, None, None], rows * weight[:, :, None], 0.0)
        acc = acc * shrink[:, None] + tl.sum(weighted, axis=0)
        top = higher
    share = tl.where(total > 0, 1.0 / total, 0.0)
    tl.store(out, (b, head, 0), (acc * share[:, None]).astype(E).reshape((1, HEADS, D)))
