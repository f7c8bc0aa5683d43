"""Attention of a new token of each row over its pages of a cache (Kwon et al., Efficient Memory Management for Large Language
Model Serving with PagedAttention, 2023), in chunks that blocks share (Dao et al., Flash-Decoding)."""

# A branch on a constant defines what a branch on the same one reads, and a dim is an integer.
# pyright: reportPossiblyUnboundVariable=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportReturnType=false

from typing import Literal

import tilec as tl

from .dims import HKV, D, E, G, T
from .paged_dims import ITEMS, MAX, PAGE, PAGES


@tl.kernel
def paged_decode_attention(
    q: tl.In[E, T, HKV, G, D],
    k_pages: tl.In[E, PAGES, PAGE, HKV, D],
    v_pages: tl.In[E, PAGES, PAGE, HKV, D],
    table: tl.In[tl.i32, T, MAX],
    lengths: tl.In[tl.i32, T],
    starts: tl.In[tl.i32, Literal["T + 1"]],
    partial: tl.InOut[tl.f32, ITEMS, HKV, G, D],
    maxima: tl.InOut[tl.f32, ITEMS, HKV, G],
    sums: tl.InOut[tl.f32, ITEMS, HKV, G],
    blocks: tl.i32,
    scale: tl.f32,
    *,
    E: tl.Const,
    D: tl.Const,
    PAGE: tl.Const,
    CHUNK: tl.Const,
    BN: tl.Const,
    ROWS: tl.Const,
):
    """Token i of row b is in page `table[b, i // PAGE]`; the row's query attends to its `lengths[b]` tokens, the new one among
    them. Chunk i - starts[b] of row b, of CHUNK tokens from the row's first on, is item i; `chunk_starts` gives `starts`.

    Of its tokens an item gives, per query head, the maximum of `q @ k.T * scale` in units of log 2, the sum of
    `2 ** (score - maximum)` and the sum of values with these weights, for `paged_merge`. What follows the last item stays as it
    is. Nothing of an item depends on other rows. `scale` is positive. Slots past the end of a row are multiplied by
    zero, so they must hold finite numbers. `blocks` blocks share the items; a row past ROWS has none.
    """
    assert PAGE % BN == 0 and CHUNK % PAGE == 0
    tl.requires(G <= 8, T <= ROWS, blocks >= 1, blocks <= 65536, ITEMS * HKV <= 1073741824, ITEMS <= 1073741824 // CHUNK)
    tl.requires(MAX * PAGE <= 1073741824)
    tl.values(table, 0, PAGES)
    tl.values(lengths, 1, MAX * PAGE + 1)
    tl.grid(blocks)
    begins = tl.load(starts, 0, shape=ROWS, pad=2147483647)
    items = min(max(tl.load(starts, T), 0), ITEMS)
    log2_scale = scale * 1.4426950408889634
    for unit in range(tl.bid(0), items * HKV, tl.num_blocks(0)):
        item, head = unit // HKV, unit % HKV
        # Pages of a chunk are read before its tiles are, so that no copy waits for one.
        pages = ()
        b = min(max(tl.sum(tl.where(begins <= item, 1, 0)) - 1, 0), T - 1)
        first = max(item - max(tl.load(starts, b), 0), 0) * CHUNK
        length = tl.load(lengths, b)
        raw = tl.load(q, (b, head, 0, 0), shape=(1, 1, 8, D), pad=0)
        for i in tl.static_range(CHUNK // PAGE):
            pages = (*pages, tl.load(table, (b, min(first // PAGE + i, MAX - 1))))
        query = tl.reshape(raw, (8, D)).T
        top = tl.full((8,), -tl.inf, tl.f32)
        total = tl.zeros((8,), tl.f32)
        acc = tl.zeros((D, 8), tl.f32)
        for j in range(first // BN, tl.cdiv(min(length, first + CHUNK), BN)):
            own, tile = (j - first // BN) // (PAGE // BN), j % (PAGE // BN)
            page = pages[0]
            for i in tl.static_range(1, CHUNK // PAGE):
                page = pages[i] if own == i else page
            k = tl.reshape(tl.load(k_pages, (page, tile, head, 0), shape=(1, BN, 1, D)), (BN, D))
            v = tl.reshape(tl.load(v_pages, (page, tile, head, 0), shape=(1, BN, 1, D)), (BN, D))
            s = tl.mma(k, query, tl.zeros((BN, 8), tl.f32))
            s = tl.where((j * BN + tl.arange(BN))[:, None] < length, s, -tl.inf)
            higher = tl.maximum(top, tl.max(s, axis=0) * log2_scale)
            p = tl.exp2(s * log2_scale - higher[None, :], fast=True)
            shrink = tl.exp2(top - higher, fast=True)
            total = total * shrink + tl.sum(p, axis=0)
            acc = tl.mma(v.T, tl.astype(p, E), acc * shrink[None, :])
            top = higher
        tl.store(partial, (item, head, 0, 0), tl.reshape(acc.T, (1, 1, 8, D)), mask=True)
        tl.store(maxima, (item, head, 0), tl.reshape(top, (1, 1, 8)), mask=True)
        tl.store(sums, (item, head, 0), tl.reshape(total, (1, 1, 8)), mask=True)
