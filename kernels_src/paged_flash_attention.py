"""Causal attention of a chunk of one prompt over its pages of a cache, in one pass (Dao, FlashAttention-2, 2023; Kwon et al.,
Efficient Memory Management for Large Language Model Serving with PagedAttention, 2023)."""

import tilec as tl

from .dims import HKV, D, E, G, T
from .paged_dims import MAX, PAGE, PAGES


@tl.kernel
def paged_flash_attention(
    q: tl.In[E, T, HKV, G, D],
    k_pages: tl.In[E, PAGES, PAGE, HKV, D],
    v_pages: tl.In[E, PAGES, PAGE, HKV, D],
    table: tl.In[tl.i32, MAX],
    out: tl.Out[E, T, HKV, G, D],
    past: tl.i32,
    scale: tl.f32,
    *,
    E: tl.Const,
    D: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    PAGE: tl.Const,
):
    """Token t, at position `past + t`, attends to positions 0 to `past + t`: `softmax(q @ k.T * scale) @ v` in f32, with
    `scale` > 0. Position i is in page `table[i // PAGE]`.

    Pages hold keys and values of the tokens themselves too. Slots past them are multiplied by zero, so they must hold finite
    numbers. The order of a token's sums follows from its position alone: tiles of keys begin at multiples of BN, and one in
    which all weights are 0 changes nothing. Blocks take the longest rows first.
    """
    assert PAGE % BN == 0
    tl.requires(past >= 0, past + T <= MAX * PAGE, MAX * PAGE <= 536870912)
    tl.values(table, 0, PAGES)
    tl.grid(G, HKV, tl.cdiv(T, BM))
    member, head, m = tl.bid(0), tl.bid(1), tl.cdiv(T, BM) - 1 - tl.bid(2)
    first = past + m * BM
    query = tl.reshape(tl.load(q, (m, head, member, 0), shape=(BM, 1, 1, D), pad=0), (BM, D))
    log2_scale = scale * 1.4426950408889634
    top = tl.full((BM,), -tl.inf, tl.f32)
    total = tl.zeros((BM,), tl.f32)
    acc = tl.zeros((BM, D), tl.f32)
    whole = (first + 1) // BN
    for j in range(tl.cdiv(min(first + BM, past + T), BN)):
        page, tile = tl.load(table, j // (PAGE // BN)), j % (PAGE // BN)
        k = tl.reshape(tl.load(k_pages, (page, tile, head, 0), shape=(1, BN, 1, D)), (BN, D))
        v = tl.reshape(tl.load(v_pages, (page, tile, head, 0), shape=(1, BN, 1, D)), (BN, D))
        s = tl.mma(query, k.T, tl.zeros((BM, BN), tl.f32))
        if j >= whole:
            seen = (j * BN + tl.arange(BN))[None, :] <= (first + tl.arange(BM))[:, None]
            s = tl.where(seen, s, -tl.inf)
        higher = tl.maximum(top, tl.max(s, axis=1) * log2_scale)
        p = tl.exp2(s * log2_scale - higher[:, None], fast=True)
        shrink = tl.exp2(top - higher, fast=True)
        total = total * shrink + tl.sum(p, axis=1)
        acc = tl.mma(tl.astype(p, E), v, acc * shrink[:, None])
        top = higher
    share = 1.0 / total
    tl.store(out, (m, head, member, 0), tl.reshape(tl.astype(acc * share[:, None], E), (BM, 1, 1, D)), mask=True)
