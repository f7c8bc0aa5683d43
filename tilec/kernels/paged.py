"""Attention of one new token per sequence over a cache in pages (Kwon et al., Efficient Memory Management for Large Language
Model Serving with PagedAttention, 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tilec.kernels.attention import ALL, DTYPES, MAX_GROUP, SIZES, checked_scale
from tilec.kernels.ops import library_op
from tilec.kernels.shapes import is_aligned, whole

TILES: Final = {16: 16, 32: 32, 64: 32, 128: 32}
"""Tokens of a tile by those of a page: what kernels are prebuilt for."""
BLOCKS: Final = 1056
"""Blocks that the parts of all sequences make together, where the cache has so many pages: eight for each multiprocessor of an
H100 or H200. On other chips results are the same."""
MOST_PARTS: Final = 128
HEADS: Final = 8
"""Heads of a block."""


def paged_attention(
    q: Any, k_pages: Any, v_pages: Any, table: Any, lengths: Any, *, scale: float | None = None, window: int | None = None
) -> Any:  # fmt: skip
    """`softmax(q @ k.T * scale) @ v` of one query per sequence and head, in f32, rounded once. It has no gradient.

    q: (B, HQ, D) of bf16 or f16, with D 64 or 128.
    k_pages, v_pages: (P, page, HKV, D) of the same dtype, without gaps, where a page has 16, 32, 64 or 128 tokens, and HQ is a
        multiple of HKV, at most 64 times it. Slots past the end of a sequence hold finite numbers.
    table: i32 (B, M), the pages of each sequence; lengths: i32 (B), its tokens. They stay on the GPU and are not checked:
        numbers of pages are clamped to the P pages, lengths to M pages. Past the end of a sequence the table has anything.
    scale: above 0. Default: `D ** -0.5`. window: a query attends to so many last tokens. Default: all.

    Sequences are divided among blocks by what the table has room for, so results depend on M, within rounding.
    Returns (B, HQ, D); 0 for a sequence of no tokens. ValueError for other dtypes, shapes or numbers, and for pages with gaps.
    """
    _check(q, k_pages, v_pages, table, lengths)
    scale = checked_scale("paged_attention", q, scale, window)
    out = q.new_empty(q.shape)
    if q.numel() == 0:
        return out
    heads = k_pages.shape[2]
    grouped = whole(q).unflatten(1, (heads, -1))
    seen = ALL if window is None else min(window, ALL)
    partial, maxima, sums = _paged()(grouped, k_pages, v_pages, whole(table), whole(lengths), seen, scale)
    result = out.unflatten(1, (heads, -1))
    _merge()(partial, maxima, sums, result)
    return out


def _check(q: Any, k_pages: Any, v_pages: Any, table: Any, lengths: Any) -> None:
    """ValueError for tensors that no kernel takes."""
    dtype = str(q.dtype).removeprefix("torch.")
    if dtype not in DTYPES or k_pages.dtype != q.dtype or v_pages.dtype != q.dtype:
        raise ValueError(f"`q` is {dtype}; paged_attention takes {' or '.join(DTYPES)}, one for `q` and pages")
    if q.dim() != 3 or k_pages.dim() != 4 or k_pages.shape != v_pages.shape or q.shape[2] != k_pages.shape[3]:
        shapes = f"{tuple(q.shape)}, {tuple(k_pages.shape)} and {tuple(v_pages.shape)}"
        raise ValueError(f"`q` and pages are {shapes}; paged_attention takes (B, HQ, D) and twice (P, page, HKV, D)")
    if q.shape[2] not in SIZES or k_pages.shape[1] not in TILES or k_pages.shape[0] < 1:
        known = ", ".join(map(str, TILES))
        raise ValueError(f"pages are {tuple(k_pages.shape)}; they have {known} tokens, and heads of 64 or 128 elements")
    heads, key_heads = q.shape[1], k_pages.shape[2]
    if heads < key_heads or key_heads < 1 or heads % key_heads or heads > MAX_GROUP * key_heads:
        raise ValueError(f"`q` has {heads} heads; paged_attention takes 1 to {MAX_GROUP} for each of the {key_heads} of pages")
    if table.dim() != 2 or table.shape[0] != q.shape[0] or table.shape[1] < 1 or lengths.shape != q.shape[:1]:
        shapes = f"{list(table.shape)} and {list(lengths.shape)}"
        raise ValueError(f"`table` and `lengths` are {shapes}; for {q.shape[0]} sequences they are (B, M) and (B)")
    for name, pages in (("k_pages", k_pages), ("v_pages", v_pages)):
        if not (pages.is_contiguous() and is_aligned(pages)):
            raise ValueError(
                f"`{name}` has gaps, or does not begin at a multiple of 16 bytes; a copy would cost more than this"
            )


def _constants(known: Mapping[str, Any]) -> dict[str, int]:
    page = int(known["PAGE"])
    return {"BN": TILES[page]}


def _parts(known: Mapping[str, Any]) -> dict[str, Any]:
    """As many as fill the chip, and no more than a table has tiles."""
    alone = known["B"] * known["HKV"] * -(-known["G"] // HEADS)
    page = int(known["PAGE"])
    return {"PARTS": max(1, min(MOST_PARTS, BLOCKS // alone, known["MAX"] * (page // TILES[page])))}


_paged = library_op("paged_attention", _constants, dims=_parts)
_merge = library_op("paged_merge", {"ROWS": 8}, mutates=["out"])
