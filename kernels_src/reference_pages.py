"""What the kernels of a cache in pages compute, in float64 NumPy.

Conventions are those of `reference`. Pages are (PAGES, PAGE, HKV, D); token i of a sequence is in page `table[i // PAGE]`. A
group of G query heads shares one of HKV key heads.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Wide = NDArray[np.float64]

TOLERANCES = dict.fromkeys(("paged_decode_attention", "paged_decode_attention_wide", "paged_decode_attention_c8"), 1.6e-2)
"""Of `tilec test`: weights are rounded to the dtype of the cache before they meet it."""


def _wide(array: Array) -> Wide:
    return np.asarray(array).astype(np.float64)


def chunk_starts(lengths: Array, CHUNK: int) -> NDArray[np.int32]:
    """Chunks of the rows before each, and of all; (T,) -> (T + 1,)."""
    chunks = -(-np.maximum(np.asarray(lengths).astype(np.int64), 0) // CHUNK)
    return np.concatenate(([0], np.cumsum(chunks))).astype(np.int32)


def rows_of(pages: Array, table: Array, count: int) -> Wide:
    """The first `count` tokens of a sequence, in order; (PAGES, PAGE, HKV, D), (MAX,) -> (count, HKV, D)."""
    at = np.arange(count)
    return _wide(pages[np.asarray(table)[at // pages.shape[1]], at % pages.shape[1]])


def paged_decode_attention(
    q: Array,
    k_pages: Array,
    v_pages: Array,
    table: Array,
    lengths: Array,
    starts: Array,
    partial: Array,
    maxima: Array,
    sums: Array,
    blocks: int,
    scale: float,
    CHUNK: int,
) -> tuple[Wide, Wide, Wide]:
    """What each chunk of CHUNK tokens of each row finds, at its item, and what other items had; (T, HKV, G, D), pages twice,
    (T, MAX), (T,), (T + 1,) -> (ITEMS, HKV, G, D), (ITEMS, HKV, G) twice."""
    found = _wide(partial), _wide(maxima), _wide(sums)
    for b in range(q.shape[0]):
        length = int(lengths[b])
        keys, values = (rows_of(pages, table[b], length) for pages in (k_pages, v_pages))
        for chunk in range(-(-length // CHUNK)):
            own, item = slice(chunk * CHUNK, (chunk + 1) * CHUNK), int(starts[b]) + chunk
            scores = np.einsum("hgd,shd->hgs", _wide(q[b]), keys[own]) * scale * np.log2(np.e)
            top = scores.max(axis=-1)
            weights = np.exp2(scores - top[..., None])
            found[0][item] = np.einsum("hgs,shd->hgd", weights, values[own])
            found[1][item], found[2][item] = top, weights.sum(axis=-1)
    return found


paged_decode_attention_wide = paged_decode_attention


def decoded(codes: Array, scales: Array) -> Wide:
    """Rows of pages of codes; (PAGES, PAGE, HKV, D), (PAGES, PAGE, HKV) -> (PAGES, PAGE, HKV, D)."""
    return _wide(codes) * _wide(scales)[..., None]


def paged_decode_attention_c8(
    q: Array, k_pages: Array, k_scales: Array, v_pages: Array, v_scales: Array, *others: Any
) -> tuple[Wide, Wide, Wide]:
    """`paged_decode_attention` of pages of codes, each with its scales, (PAGES, PAGE, HKV)."""
    return paged_decode_attention(q, decoded(k_pages, k_scales), decoded(v_pages, v_scales), *others)


def paged_merge(partial: Array, maxima: Array, sums: Array, starts: Array) -> Wide:
    """Attention of each row from what its items found, 0 without any; (ITEMS, HKV, G, D), (ITEMS, HKV, G) twice, (T + 1,) ->
    (T, HKV, G, D)."""
    out = np.zeros((len(starts) - 1, *partial.shape[1:]))
    for b, (begin, end) in enumerate(pairwise(starts)):
        if begin < end:
            own = slice(int(begin), int(end))
            weights = np.exp2(_wide(maxima[own]) - _wide(maxima[own]).max(axis=0))
            total = (_wide(sums[own]) * weights).sum(axis=0)
            out[b] = (_wide(partial[own]) * weights[..., None]).sum(axis=0) / total[..., None]
    return out


paged_merge_wide = paged_merge


def paged_flash_attention(q: Array, k_pages: Array, v_pages: Array, table: Array, past: int, scale: float) -> Wide:
    """Causal attention of tokens at positions `past` and following; (T, HKV, G, D), pages twice, (MAX,) -> (T, HKV, G, D)."""
    end = past + q.shape[0]
    keys, values = (rows_of(pages, table, end) for pages in (k_pages, v_pages))
    scores = np.einsum("thgd,shd->hgts", _wide(q), keys) * scale
    scores[..., np.arange(end)[None, :] > past + np.arange(q.shape[0])[:, None]] = -np.inf
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("hgts,shd->thgd", raised / raised.sum(axis=-1, keepdims=True), values)


def paged_gather(
    k_pages: Array, v_pages: Array, table: Array, k_cache: Array, v_cache: Array, filled: int
) -> tuple[Wide, Wide]:
    """Both caches with the tokens of whole pages up to the one of token `filled - 1`; pages twice, (MAX,), (S, HKV, D) twice ->
    (S, HKV, D) twice."""
    found, size = (_wide(k_cache), _wide(v_cache)), k_pages.shape[1]
    count = min(-(-filled // size) * size, len(k_cache))
    for cache, pages in zip(found, (k_pages, v_pages), strict=True):
        cache[:count] = rows_of(pages, table, count)
    return found


def paged_gather_c8(k_pages: Array, k_scales: Array, v_pages: Array, v_scales: Array, *others: Any) -> tuple[Wide, Wide]:
    """`paged_gather` of pages of codes, each with its scales, (PAGES, PAGE, HKV)."""
    return paged_gather(decoded(k_pages, k_scales), decoded(v_pages, v_scales), *others)


def prompts_in_slots(tokens: int, slots: int, tile: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """`firsts` and `lasts` of `packed_flash_attention` for tokens of up to three prompts, which begin at multiples of `tile`
    and share the slots; (T,) twice. The prompts have tokens before those of the launch, where there is room."""
    tiles = slots // tile
    count = min(3, tiles, tokens)
    begins = [number * tiles // count * tile for number in range(count + 1)]
    rooms = [end - begin for begin, end in pairwise(begins)]
    left, firsts, lasts = tokens, list[int](), list[int]()
    for number, (begin, room) in enumerate(zip(begins, rooms, strict=False)):
        own = max(min(room, -(-left // (count - number))), left - sum(rooms[number + 1 :]))
        past = (room - own) // 2
        firsts += [begin] * own
        lasts += range(begin + past, begin + past + own)
        left -= own
    return np.array(firsts, np.int32), np.array(lasts, np.int32)


def packed_flash_attention(
    q: Array, k_cache: Array, v_cache: Array, firsts: Array, lasts: Array, scale: float
) -> Wide:  # fmt: skip
    """Attention of each token to slots `firsts[t]` to `lasts[t]`; (T, HKV, G, D), (S, HKV, D) twice, (T,) twice -> (T, HKV, G,
    D)."""
    slots = np.arange(len(k_cache), dtype=np.int32)
    seen: NDArray[np.bool_] = (slots >= firsts[:, None]) & (slots <= lasts[:, None])
    scores = np.where(seen, np.einsum("thgd,shd->hgts", _wide(q), _wide(k_cache)) * scale, -np.inf)
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("hgts,shd->thgd", raised / raised.sum(axis=-1, keepdims=True), _wide(v_cache))
