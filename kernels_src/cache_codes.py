"""A cache of eight bits: e4m3 codes, and an f32 scale for each row of a key head. What kernels of such caches share.

`row = codes * scale`, and `scale` is the row's greatest element over 448, the greatest number of e4m3. A row of zeros is zeros.
A row with NaN has NaN there; one with an infinity has an infinite scale, and NaN for the infinity: so sums over it are NaN.
"""

import tilec as tl

GREATEST = 448.0
"""The greatest finite number of e4m3 (Micikevicius et al., FP8 Formats for Deep Learning, 2022)."""

SMALLEST = 1e-30
"""Rows with no greater element are coded as if they had this one, so that a row of zeros has no scale of zero."""

LARGE = 16384.0
"""Weights of values are in f16, and none is greater than twice this: so those of slots that count little keep their bits."""

LEAST_UNIT = 2.0**-112
"""Less than any scale of a row, with an inverse that LARGE does not make infinite."""

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
def power_of(x: tl.Tile) -> tl.Tile:
    """The greatest power of two that is no greater, of positive normal numbers; 0 of smaller ones; infinity of it and NaN."""
    return tl.bitcast(tl.bitcast(x, tl.i32) & 0x7F800000, tl.f32)


@tl.function
def inverse_of(power: tl.Tile) -> tl.Tile:
    """The inverse of a power of two up to 2^126; 2^127 for 0. Of infinity it is no number that hides it: minus infinity."""
    return tl.bitcast(0x7F000000 - tl.bitcast(power, tl.i32), tl.f32)


@tl.function
def loaded_codes(
    k_cache: tl.Tensor, k_scales: tl.Tensor, v_cache: tl.Tensor, v_scales: tl.Tensor, b: int, head: int, first: int, count: int,
    D: int,
) -> tuple[tl.Tile, tl.Tile, tl.Tile, tl.Tile, tl.Tile]:  # fmt: skip
    """`count` slots of a head from `first` on: halves of keys, values, and the scales of both."""
    keys_low = tl.load(k_cache, offset=(b, first, head, 0), shape=(1, count, 1, D // 2))
    keys_high = tl.load(k_cache, offset=(b, first, head, D // 2), shape=(1, count, 1, D // 2))
    v = tl.load(v_cache, offset=(b, first, head, 0), shape=(1, count, 1, D))
    k_scale = tl.load(k_scales, offset=(b, first, head), shape=(1, count, 1))
    v_scale = tl.load(v_scales, offset=(b, first, head), shape=(1, count, 1))
    return keys_low, keys_high, v, k_scale, v_scale


@tl.function
def attended_codes(
    state: tuple[tl.Tile, tl.Tile, tl.Tile, tl.Tile], tile: tuple[tl.Tile, tl.Tile, tl.Tile, tl.Tile, tl.Tile], low: tl.Tile,
    high: tl.Tile, first: int, slot: tl.Tile, log2_scale: tl.Tile, split: int, slots: int, D: int,
) -> tuple[tl.Tile, tl.Tile, tl.Tile, tl.Tile]:  # fmt: skip
    """`cache_attention.attended` of the codes of `loaded_codes`, by `split` warps of `slots` slots each, which have sums of
    their own.

    Tensor cores multiply codes in f16, where each is exact. A slot's scale meets its sums, or its weight, which is in units of
    `unit`, a power of two that no scale so far is twice as great as: so no weight is greater than 2 * LARGE. `low`, `high`:
    (split, D / 2, 8); `log2_scale`: (split, 8), of each query; sums of values are of rows as in `rows_in_lanes`.
    """
    total, acc, top, unit = state
    keys_low, keys_high, v, k_scale, v_scale = tile
    k_scale, v_scale = k_scale.reshape((split, slots, 1)), v_scale.reshape((split, slots, 1))
    s = tl.mma(keys_low.reshape((split, slots, D // 2)).astype(tl.f16), low, tl.zeros((split, slots, 8), tl.f32))
    s = tl.mma(keys_high.reshape((split, slots, D // 2)).astype(tl.f16), high, s) * k_scale
    is_seen = (first + tl.arange(split * slots)).reshape((split, slots, 1)) < slot
    s, v_scale = tl.where(is_seen, s, -tl.inf), tl.where(is_seen, v_scale, 0.0)
    higher = tl.maximum(top, tl.max(s, axis=1) * log2_scale)
    greater = tl.maximum(unit, power_of(tl.max(v_scale, axis=1)))
    p = tl.exp2(s * log2_scale[:, None, :] - higher[:, None, :], fast=True)
    shrink = tl.exp2(top - higher, fast=True)
    weight = tl.astype(p * (v_scale * (inverse_of(greater) * LARGE)[:, None, :]), tl.f16)
    kept = acc * (shrink * (unit * inverse_of(greater)))[:, None, :]
    values = v.reshape((split * slots, D)).astype(tl.f16)
    return total * shrink + tl.sum(p, axis=1), tl.mma(rows_in_lanes(values, split, slots, D), weight, kept), higher, greater


@tl.function
def query_operands(
    low: tl.Tile, high: tl.Tile, log2_scale: tl.Tile, split: int, D: int
) -> tuple[tl.Tile, tl.Tile, tl.Tile]:  # fmt: skip
    """Queries as right operands in f16, in units of a power of two that their greatest element is less than twice as great as;
    and the scale of their scores, times that unit; (8, D) in halves -> (split, D / 2, 8) twice, (split, 8)."""
    most = tl.maximum(tl.max(tl.abs(low.astype(tl.f32)), axis=1), tl.max(tl.abs(high.astype(tl.f32)), axis=1))
    unit = power_of(most)
    of_unit = inverse_of(unit)[:, None]
    low, high = tl.astype(low.astype(tl.f32) * of_unit, tl.f16), tl.astype(high.astype(tl.f32) * of_unit, tl.f16)
    half_low = tl.broadcast_to(low.T[None, :, :], (split, D // 2, 8))
    half_high = tl.broadcast_to(high.T[None, :, :], (split, D // 2, 8))
    return half_low, half_high, tl.broadcast_to((unit * log2_scale)[None, :], (split, 8))


@tl.function
def nothing_seen(split: int, D: int) -> tuple[tl.Tile, tl.Tile, tl.Tile, tl.Tile]:
    """The state of `attended_codes` before the first tile."""
    total, acc = tl.zeros((split, 8), tl.f32), tl.zeros((split, D, 8), tl.f32)
    return total, acc, tl.full((split, 8), LOWEST, tl.f32), tl.full((split, 1), LEAST_UNIT, tl.f32)


@tl.function
def of_all_warps(
    total: tl.Tile, acc: tl.Tile, top: tl.Tile, unit: tl.Tile, D: int
) -> tuple[tl.Tile, tl.Tile, tl.Tile]:  # fmt: skip
    """Sums of powers, (8,), and of values, (D, 8), and the greatest score times log2(e), (8,), `LOWEST` if there is none."""
    highest = tl.max(top, axis=0)
    share = tl.exp2(top - highest[None, :], fast=True)
    values = tl.sum(acc * (share * (unit * (1.0 / LARGE)))[:, None, :], axis=0)
    values = tl.permute(values.reshape((D // 8, 8, 8)), (1, 0, 2)).reshape((D, 8))
    return tl.sum(total * share, axis=0), values, highest


@tl.function
def attention_of_codes(
    low: tl.Tile, high: tl.Tile, k_cache: tl.Tensor, k_scales: tl.Tensor, v_cache: tl.Tensor, v_scales: tl.Tensor, b: int,
    head: int, part: int, parts: int, slot: tl.Tile, log2_scale: tl.Tile, split: int, slots: int, D: int,
    ahead: tuple[tl.Tile, tl.Tile, tl.Tile, tl.Tile, tl.Tile],
) -> tuple[tl.Tile, tl.Tile, tl.Tile]:  # fmt: skip
    """Attention of queries, (8, D) in halves, to every `parts`-th tile of a sequence's cache from `part` on, of its slots
    before `slot`: see `of_all_warps`. `ahead` is the first of them (`first_codes`); each iteration loads the next one's before
    it ends, so that memory is busy while threads compute."""
    half_low, half_high, of_queries = query_operands(low, high, log2_scale, split, D)
    total, acc, top, unit = nothing_seen(split, D)
    count = split * slots
    tiles = tl.cdiv(slot, count)
    keys_low, keys_high, v, k_scale, v_scale = ahead
    for j in range(part, tiles, parts):
        total, acc, top, unit = attended_codes(
            (total, acc, top, unit), (keys_low, keys_high, v, k_scale, v_scale), half_low, half_high, j * count, slot,
            of_queries, split, slots, D
        )  # fmt: skip
        keys_low, keys_high, v, k_scale, v_scale = loaded_codes(
            k_cache, k_scales, v_cache, v_scales, b, head, min(j + parts, tiles - 1) * count, count, D
        )
    return of_all_warps(total, acc, top, unit, D)


@tl.function
def first_codes(
    k_cache: tl.Tensor, k_scales: tl.Tensor, v_cache: tl.Tensor, v_scales: tl.Tensor, b: int, head: int, part: int,
    slot: tl.Tile, count: int, D: int,
) -> tuple[tl.Tile, tl.Tile, tl.Tile, tl.Tile, tl.Tile]:  # fmt: skip
    """The tile of a part's first iteration; the last tile, or the first one, if the part has none."""
    first = max(min(part, tl.cdiv(slot, count) - 1), 0) * count
    return loaded_codes(k_cache, k_scales, v_cache, v_scales, b, head, first, count, D)
