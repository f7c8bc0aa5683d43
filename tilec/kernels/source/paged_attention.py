"""Attention of one new token per sequence over a cache in pages, divided among blocks (Dao et al., Flash-Decoding; Kwon et al.,
Efficient Memory Management for Large Language Model Serving with PagedAttention, 2023)."""

from attention_parts import HKV, LOG2E, MAX, PAGE, PAGES, PARTS, B, D, E, G

import tilec as tl

HEADS = 8
"""Heads of a block: the columns of a product."""


@tl.kernel
def paged_attention(
    q: tl.In[E, B, HKV, G, D],
    k_pages: tl.In[E, PAGES, PAGE, HKV, D],
    v_pages: tl.In[E, PAGES, PAGE, HKV, D],
    table: tl.In[tl.i32, B, MAX],
    lengths: tl.In[tl.i32, B],
    partial: tl.Out[tl.f32, B, PARTS, HKV, G, D],
    maxima: tl.Out[tl.f32, B, PARTS, HKV, G],
    sums: tl.Out[tl.f32, B, PARTS, HKV, G],
    window: tl.i32,
    scale: tl.f32,
    *,
    E: tl.Const,
    D: tl.Const,
    PAGE: tl.Const,
    BN: tl.Const,
):
    """Token i of sequence b is in page `table[b, i // PAGE]`; the query attends to the last `window` of `lengths[b]` tokens. A
    part takes every PARTS-th tile of BN of them.

    Of its tiles a part gives, per head, the maximum of `q @ k.T * scale` in units of log 2, the sum of `2 ** (score - maximum)`
    and the sum of values with these weights, for `paged_merge`; -1e30, 0 and 0 where it has none. `scale` is positive.

    Lengths and the table are not trusted: they are clamped to the table and to the pages. Slots past the end of a sequence are
    multiplied by zero, so they must hold finite numbers.
    """
    assert PAGE % BN == 0
    tl.requires(PARTS <= 128, MAX <= 16777216 // PAGE, window >= 1, window <= 16777216)
    groups = tl.cdiv(G, HEADS)
    tl.grid(PARTS, HKV * groups, B)
    part, head, member, b = tl.bid(0), tl.bid(1) // groups, tl.bid(1) % groups, tl.bid(2)
    query = tl.reshape(tl.load(q, (b, head, member, 0), shape=(1, 1, HEADS, D), pad=0), (HEADS, D)).T
    length = min(max(tl.load(lengths, b), 0), MAX * PAGE)
    first = max(length - window, 0)
    log2_scale = scale * LOG2E
    top = tl.full((HEADS,), -1e30, tl.f32)
    total = tl.zeros((HEADS,), tl.f32)
    acc = tl.zeros((D, HEADS), tl.f32)
    for j in range(first // BN + part, tl.cdiv(length, BN), PARTS):
        page, tile = min(max(tl.load(table, (b, j // (PAGE // BN))), 0), PAGES - 1), j % (PAGE // BN)
        keys = tl.reshape(tl.load(k_pages, (page, tile, head, 0), shape=(1, BN, 1, D)), (BN, D))
        values = tl.reshape(tl.load(v_pages, (page, tile, head, 0), shape=(1, BN, 1, D)), (BN, D))
        s = tl.mma(keys, query, tl.zeros((BN, HEADS), tl.f32))
        at = (j * BN + tl.arange(BN))[:, None]
        s = tl.where((at >= first) & (at < length), s, -tl.inf)
        higher = tl.maximum(top, tl.max(s, axis=0) * log2_scale)
        p = tl.exp2(s * log2_scale - higher[None, :], fast=True)
        shrink = tl.exp2(top - higher, fast=True)
        total = total * shrink + tl.sum(p, axis=0)
        acc = tl.mma(values.T, tl.astype(p, E), acc * shrink[None, :])
        top = higher
    tl.store(partial, (b, part, head, member, 0), tl.reshape(acc.T, (1, 1, 1, HEADS, D)), mask=True)
    tl.store(maxima, (b, part, head, member), tl.reshape(top, (1, 1, 1, HEADS)), mask=True)
    tl.store(sums, (b, part, head, member), tl.reshape(total, (1, 1, 1, HEADS)), mask=True)
