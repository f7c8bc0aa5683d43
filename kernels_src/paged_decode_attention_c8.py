"""`paged_decode_attention` of a cache of codes."""

from typing import Literal

import tilec as tl

from .cache_codes import attended_codes, loaded_codes, nothing_seen, of_all_warps, query_operands
from .dims import HKV, D, E, G, T
from .paged_dims import ITEMS, MAX, PAGE, PAGES


@tl.kernel
def paged_decode_attention_c8(
    q: tl.In[E, T, HKV, G, D],
    k_pages: tl.In[tl.f8e4m3, PAGES, PAGE, HKV, D],
    k_scales: tl.In[tl.f32, PAGES, PAGE, HKV],
    v_pages: tl.In[tl.f8e4m3, PAGES, PAGE, HKV, D],
    v_scales: tl.In[tl.f32, PAGES, PAGE, HKV],
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
    SLOTS: tl.Const,
    ROWS: tl.Const,
):
    """Items, and what they give, are those of `paged_decode_attention`, of keys and values that are codes times the scale of
    their token and head; a row past ROWS has none. A tile of BN tokens is one of warps of SLOTS tokens each, whose sums are
    added where the item ends. Scales past the end of a row are not used, but codes there must be of finite numbers."""
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
        b = min(max(tl.sum(tl.where(begins <= item, 1, 0)) - 1, 0), T - 1)
        first = max(item - max(tl.load(starts, b), 0), 0) * CHUNK
        length = tl.load(lengths, b)
        pages = ()
        for i in tl.static_range(CHUNK // PAGE):
            pages = (*pages, tl.load(table, (b, min(first // PAGE + i, MAX - 1))))
        # The next tile is loaded before a tile is multiplied, so that memory is busy while threads compute.
        page = pages[0]  # pyright: ignore[reportGeneralTypeIssues]
        keys_low, keys_high, v, k_scale, v_scale = loaded_codes(
            k_pages, k_scales, v_pages, v_scales, page, head, 0, BN, D  # pyright: ignore[reportArgumentType]
        )  # fmt: skip
        low = tl.reshape(tl.load(q, (b, head, 0, 0), shape=(1, 1, 8, D // 2), pad=0), (8, D // 2))
        high = tl.reshape(tl.load(q, (b, head, 0, 1), shape=(1, 1, 8, D // 2), pad=0), (8, D // 2))
        half_low, half_high, of_queries = query_operands(low, high, log2_scale, BN // SLOTS, D)
        total, acc, top, unit_of_scales = nothing_seen(BN // SLOTS, D)
        tiles = tl.cdiv(min(length - first, CHUNK), BN)
        for j in range(tiles):
            total, acc, top, unit_of_scales = attended_codes(
                (total, acc, top, unit_of_scales), (keys_low, keys_high, v, k_scale, v_scale), half_low, half_high,
                first + j * BN,  # pyright: ignore[reportArgumentType]
                length, of_queries, BN // SLOTS, SLOTS, D
            )  # fmt: skip
            following = min(j + 1, tiles - 1)
            own, tile = following // (PAGE // BN), following % (PAGE // BN)
            page = pages[0]  # pyright: ignore[reportGeneralTypeIssues]
            for i in tl.static_range(1, CHUNK // PAGE):
                page = pages[i] if own == i else page
            keys_low, keys_high, v, k_scale, v_scale = loaded_codes(
                k_pages, k_scales, v_pages, v_scales, page, head, tile * BN, BN, D  # pyright: ignore[reportArgumentType]
            )  # fmt: skip
        sum_of_powers, values, highest = of_all_warps(total, acc, top, unit_of_scales, D)
        tl.store(partial, (item, head, 0, 0), tl.reshape(values.T, (1, 1, 8, D)), mask=True)
        tl.store(maxima, (item, head, 0), tl.reshape(highest, (1, 1, 8)), mask=True)
        tl.store(sums, (item, head, 0), tl.reshape(sum_of_powers, (1, 1, 8)), mask=True)
