"""Attention over a cache in pages in NumPy and float64. Functions and parameters are named like kernels and theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Float = NDArray[np.float64]
Integers = NDArray[np.integer]

LOG2E = 1.4426950408889634
TOLERANCES = {"paged_attention": 3.2e-2}
"""Of `tilec test`: probabilities are rounded to the dtype of values before they meet them."""


def paged_attention(
    q: Array, k_pages: Array, v_pages: Array, table: Integers, lengths: Integers, window: int, scale: float, PARTS: int, BN: int
) -> tuple[Float, Float, Float]:  # fmt: skip
    """Of each part: sums of values (B, PARTS, HKV, G, D), maxima and sums (B, PARTS, HKV, G)."""
    (count, heads, group, size), page = q.shape, k_pages.shape[1]
    partial = np.zeros((count, PARTS, heads, group, size))
    maxima, sums = np.full(partial.shape[:-1], -1e30), np.zeros(partial.shape[:-1])
    for b in range(count):
        length = int(np.clip(lengths[b], 0, table.shape[1] * page))
        first = max(length - window, 0)
        pages = table[b].clip(0, len(k_pages) - 1)
        at = np.arange(length)
        keys, values = (cache[pages[at // page], at % page].astype(np.float64) for cache in (k_pages, v_pages))
        scores = np.einsum("hgd,shd->hgs", q[b].astype(np.float64), keys) * (scale * LOG2E)
        for part in range(PARTS):
            mine = (at >= first) & ((at // BN - first // BN) % PARTS == part)
            if mine.any():
                maxima[b, part] = scores[..., mine].max(axis=-1)
                weights = np.exp2(scores[..., mine] - maxima[b, part][..., None])
                sums[b, part] = weights.sum(axis=-1)
                partial[b, part] = np.einsum("hgs,shd->hgd", weights, values[mine])
    return partial, maxima, sums


def paged_merge(partial: Array, maxima: Array, sums: Array) -> Float:
    high = maxima.astype(np.float64)
    weights = np.exp2(high - high.max(axis=1, keepdims=True))
    total = (weights * sums).sum(axis=1)
    found = (weights[..., None] * partial).sum(axis=1)
    return np.where(total[..., None] > 0, found / np.where(total > 0, total, 1)[..., None], 0)


def paged_attention_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """Lengths up to three pages, or what the table has room for; pages may be shared."""
    pages = dims["PAGES"], dims["PAGE"], dims["HKV"], dims["D"]
    lengths: NDArray[np.int64] = rng.integers(0, min(int(dims["MAX"]), 3) * int(dims["PAGE"]) + 1, int(dims["B"]))
    return {
        "q": rng.standard_normal((dims["B"], dims["HKV"], dims["G"], dims["D"])),
        "k_pages": rng.standard_normal(pages),
        "v_pages": rng.standard_normal(pages),
        "table": rng.integers(0, dims["PAGES"], (dims["B"], dims["MAX"])).astype(np.int32),
        "lengths": lengths.astype(np.int32),
        "scale": dims["D"] ** -0.5,
    }


def paged_merge_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """Some parts are empty, and all parts of the first sequence."""
    shape = dims["B"], dims["PARTS"], dims["HKV"], dims["G"]
    empty = rng.random(shape) < 0.3
    empty[0] = True
    return {
        "partial": np.where(empty[..., None], 0, rng.standard_normal((*shape, dims["D"]))),
        "maxima": np.where(empty, -1e30, 3 * rng.standard_normal(shape)),
        "sums": np.where(empty, 0, 1 + rng.random(shape)),
    }
