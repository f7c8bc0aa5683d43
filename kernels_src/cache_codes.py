"""A cache of eight bits: e4m3 codes, and an f32 scale for each row of a key head. What kernels of such caches share.

`row = codes * scale`, and `scale` is the row's greatest element over 448, the greatest number of e4m3. A row of zeros is zeros.
A row with NaN has NaN there; one with an infinity has an infinite scale, and NaN for the infinity: so sums over it are NaN.
"""

import tilec as tl

GREATEST = 448.0
"""The greatest finite number of e4m3 (Micikevicius et al., FP8 Formats for Deep Learning, 2022)."""

SMALLEST = 1e-30
"""Rows with no greater element are coded as if they had this one, so that a row of zeros has no scale of zero."""

LOWEST = -3.4e38
"""Less than any score: where no slot was seen. -inf would leave NaN, as the difference of two."""


@tl.function
def greatest(x: tl.Tile) -> tl.Tile:
    """The greatest magnitude of each row, NaN left out; (1, G, W) f32 -> (1, G)."""
    return tl.max(tl.abs(x), axis=2)


@tl.function
def scale_of(magnitude: tl.Tile) -> tl.Tile:
    """The scale of rows with this greatest magnitude; (1, G) -> (1, G)."""
    return tl.maximum(magnitude, SMALLEST) / GREATEST


@tl.function
def coded(x: tl.Tile, scale: tl.Tile) -> tl.Tile:
    """The codes of rows: `x / scale` rounded once, to nearest even; (1, G, W) f32 and (1, G) -> (1, G, W)."""
    return tl.astype(x / scale[:, :, None], tl.f8e4m3)


@tl.function
def decoded(x: tl.Tile, scale: tl.Tile, width: int) -> tl.Tile:
    """What a cache has of one row; (1, 1, width) f32 and (1, 1) -> (1, width) f32."""
    return tl.reshape(coded(x, scale).astype(tl.f32) * scale[:, :, None], (1, width))


@tl.function
def rows_in_lanes(v: tl.Tile, split: int, slots: int, D: int) -> tl.Tile:
    """Values as left operands, (split * slots, D) -> (split, D, slots), with element `D / 8 * g + r` of a head in row
    `8 * r + g`: so a thread has D / 8 elements of a slot that are side by side in memory, and loads them at once."""
    return tl.permute(v.reshape((split, slots, 8, D // 8)), (0, 3, 2, 1)).reshape((split, D, slots))


@tl.function
def attended_codes(
    state: tuple[tl.Tile, tl.Tile, tl.Tile], low: tl.Tile, high: tl.Tile, k_cache: tl.Tensor, k_scales: tl.Tensor,
    v_cache: tl.Tensor, v_scales: tl.Tensor, b: int, head: int, j: int, slot: tl.Tile, log2_scale: tl.Tile, split: int,
    slots: int, D: int, E: tl.Const,
) -> tuple[tl.Tile, tl.Tile, tl.Tile]:  # fmt: skip
    """`cache_attention.attended` of codes, by `split` warps of `slots` slots each, which have sums of their own.

    Tensor cores multiply codes in 16 bits, where each is exact; a slot's scale meets its sums, or its weight. That one is times
    448, a row's greatest element, so that it is no smaller in f16 than the row is. `low`, `high`: (split, D / 2, 8); sums of
    values are of rows as in `rows_in_lanes`.
    """
    total, acc, top = state
    first = j * split * slots
    keys_low = tl.load(k_cache, offset=(b, first, head, 0), shape=(1, split * slots, 1, D // 2))
    keys_high = tl.load(k_cache, offset=(b, first, head, D // 2), shape=(1, split * slots, 1, D // 2))
    v = tl.load(v_cache, offset=(b, first, head, 0), shape=(1, split * slots, 1, D)).reshape((split * slots, D))
    k_scale = tl.load(k_scales, offset=(b, first, head), shape=(1, split * slots, 1)).reshape((split, slots, 1))
    v_scale = tl.load(v_scales, offset=(b, first, head), shape=(1, split * slots, 1)).reshape((split, slots, 1))
    s = tl.mma(keys_low.reshape((split, slots, D // 2)).astype(E), low, tl.zeros((split, slots, 8), tl.f32))
    s = tl.mma(keys_high.reshape((split, slots, D // 2)).astype(E), high, s) * k_scale
    s = tl.where((first + tl.arange(split * slots)).reshape((split, slots, 1)) < slot, s, -tl.inf)
    higher = tl.maximum(top, tl.max(s, axis=1) * log2_scale)
    p = tl.exp2(s * log2_scale - higher[:, None, :], fast=True)
    shrink = tl.exp2(top - higher, fast=True)
    weight = tl.astype(p * (v_scale * GREATEST), E)
    sums = tl.mma(rows_in_lanes(v.astype(E), split, slots, D), weight, acc * shrink[:, None, :])
    return total * shrink + tl.sum(p, axis=1), sums, higher


@tl.function
def attention_of_codes(
    low: tl.Tile, high: tl.Tile, k_cache: tl.Tensor, k_scales: tl.Tensor, v_cache: tl.Tensor, v_scales: tl.Tensor, b: int,
    head: int, part: int, parts: int, slot: tl.Tile, log2_scale: tl.Tile, split: int, slots: int, D: int, E: tl.Const,
) -> tuple[tl.Tile, tl.Tile, tl.Tile]:  # fmt: skip
    """Attention of queries, (8, D) in halves, to every `parts`-th tile of a sequence's cache from `part` on, of its slots
    before `slot`: sums of powers, (8,), and of values, (D, 8), and the greatest score times log2(e), (8,), `LOWEST` if there
    is none."""
    half_low = tl.broadcast_to(low.T[None, :, :], (split, D // 2, 8))
    half_high = tl.broadcast_to(high.T[None, :, :], (split, D // 2, 8))
    top = tl.full((split, 8), LOWEST, tl.f32)
    total = tl.zeros((split, 8), tl.f32)
    acc = tl.zeros((split, D, 8), tl.f32)
    for j in range(part, tl.cdiv(slot, split * slots), parts):
        total, acc, top = attended_codes(
            (total, acc, top), half_low, half_high, k_cache, k_scales, v_cache, v_scales, b, head, j, slot, log2_scale, split,
            slots, D, E
        )  # fmt: skip
    highest = tl.max(top, axis=0)
    share = tl.exp2(top - highest[None, :], fast=True)
    values = tl.sum(acc * share[:, None, :], axis=0) * (1.0 / GREATEST)
    values = tl.permute(values.reshape((D // 8, 8, 8)), (1, 0, 2)).reshape((D, 8))
    return tl.sum(total * share, axis=0), values, highest
