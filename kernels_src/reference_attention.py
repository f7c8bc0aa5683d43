"""What the kernels between the QKV projection and the output projection compute, in float64 NumPy.

Conventions are those of `reference`. Caches are (S, HKV, D); a group of G query heads shares one of HKV key heads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_dtypes import float8_e4m3fn
from numpy.typing import NDArray

Array = NDArray[Any]
Wide = NDArray[np.float64]


TOLERANCES = dict.fromkeys(
    (
        "decode_attention", "decode_attention_wide", "rotary_decode_attention", "rotary_decode_attention_kv",
        "rotary_decode_attention_c8", "rotary_decode_attention_kv_c8",
    ),
    1.6e-2,
)  # fmt: skip
"""Of `tilec test`: weights are rounded to the dtype of the cache before they meet it."""


def _wide(array: Array) -> Wide:
    return np.asarray(array).astype(np.float64)


def rotary_table(positions: int, width: int, theta: float = 1e6) -> NDArray[np.float32]:
    """Cosines, then sines, of `position * theta ** (-2 i / width)` for `width / 2` values of i; (positions, width) f32.

    Su et al., RoFormer, 2021, section 3.2; the angles are computed in float64 and rounded once.
    """
    angles = np.arange(positions)[:, None] * theta ** (-np.arange(0, width, 2) / width)[None, :]
    return np.concatenate((np.cos(angles), np.sin(angles)), axis=1).astype(np.float32)


def rotated(x: Array, table: Array) -> Wide:
    """Rotate-half rotary embedding of every head; (T, heads, D) with the tokens' rows of the table (T, D)."""
    low, high = np.split(_wide(x), 2, axis=-1)
    cos, sin = (part[:, None, :] for part in np.split(_wide(table), 2, axis=-1))
    return np.concatenate((low * cos - high * sin, high * cos + low * sin), axis=-1)


def qk_norm_rope_kv(
    qkv: Array,
    q_weight: Array,
    k_weight: Array,
    table: Array,
    positions: Array,
    slots: Array,
    k_cache: Array,
    v_cache: Array,
    eps: float,
) -> tuple[Wide, Wide, Wide]:
    """Queries and both caches after the tokens' keys and values are in; (T, HQ + 2 HKV, D), two (D,), (P, D), two (T,), two
    (S, HKV, D) -> (T, HQ, D), two (S, HKV, D)."""
    wide, kv = _wide(qkv), k_cache.shape[1]

    def normed(x: Wide, weight: Array) -> Wide:
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * _wide(weight)

    heads = (normed(wide[:, : -2 * kv], q_weight), normed(wide[:, -2 * kv : -kv], k_weight), wide[:, -kv:])
    return rope_kv(np.concatenate(heads, axis=1), table, positions, slots, k_cache, v_cache)


def rope_kv(
    qkv: Array, table: Array, positions: Array, slots: Array, k_cache: Array, v_cache: Array
) -> tuple[Wide, Wide, Wide]:
    """`qk_norm_rope_kv` of heads that have no norm."""
    wide, kv = _wide(qkv), k_cache.shape[1]
    turned = rotated(wide[:, :-kv], np.asarray(table)[np.asarray(positions)])
    return (turned[:, :-kv], *kv_update(turned[:, -kv:], wide[:, -kv:], slots, k_cache, v_cache))


def kv_update(k: Array, v: Array, slots: Array, k_cache: Array, v_cache: Array) -> tuple[Wide, Wide]:
    """Both caches with the tokens' rows in their slots; (T, HKV, D) twice, (T,), (S, HKV, D) twice -> (S, HKV, D) twice."""
    caches = _wide(k_cache), _wide(v_cache)
    for cache, rows in zip(caches, (k, v), strict=True):
        cache[np.asarray(slots)] = _wide(rows)
    return caches


def flash_attention(q: Array, k_cache: Array, v_cache: Array, past: int, scale: float) -> Wide:
    """Causal attention of tokens at positions `past` and following; (T, HKV, G, D), (S, HKV, D) twice -> (T, HKV, G, D)."""
    end = past + q.shape[0]
    scores = np.einsum("thgd,shd->hgts", _wide(q), _wide(k_cache)[:end]) * scale
    scores[..., np.arange(end)[None, :] > past + np.arange(q.shape[0])[:, None]] = -np.inf
    weights = _softmax(scores)
    return np.einsum("hgts,shd->thgd", weights, _wide(v_cache)[:end])


def _softmax(scores: Wide) -> Wide:
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def decode_attention(
    q: Array, k_cache: Array, v_cache: Array, lengths: Array, scale: float, P: int, BN: int, apart: bool = False
) -> tuple[Wide, Wide, Wide]:
    """What each of `P` parts finds, every `P`-th tile of `BN` slots being its own, and, if it is `apart`, the last slot as if
    it were the tile after those of all others; (B, HKV, G, D), (B, S, HKV, D) twice, (B,) -> (B, P, HKV, G, D), (B, P, HKV, G)
    twice."""
    sequences, heads, group, width = q.shape
    partial = np.zeros((sequences, P, heads, group, width))
    maxima = np.full((sequences, P, heads, group), -np.inf)
    sums = np.zeros((sequences, P, heads, group))
    for b in range(sequences):
        slots = np.arange(int(lengths[b]))
        tiles = slots // BN
        if apart:
            tiles[-1] = -(-(slots.size - 1) // BN)
        for p in range(P):
            mine = slots[tiles % P == p]
            if mine.size:
                scores = np.einsum("hgd,shd->hgs", _wide(q[b]), _wide(k_cache[b, mine])) * scale * np.log2(np.e)
                maxima[b, p] = scores.max(axis=-1)
                weights = np.exp2(scores - maxima[b, p, :, :, None])
                sums[b, p] = weights.sum(axis=-1)
                partial[b, p] = np.einsum("hgs,shd->hgd", weights, _wide(v_cache[b, mine]))
    return partial, maxima, sums


decode_attention_wide = decode_attention


def decode_merge(partial: Array, maxima: Array, sums: Array) -> Wide:
    """Attention from what the parts found; (B, P, HKV, G, D), (B, P, HKV, G) twice -> (B, HKV, G, D)."""
    weights = np.exp2(_wide(maxima) - _wide(maxima).max(axis=1, keepdims=True))
    return (_wide(partial) * weights[..., None]).sum(axis=1) / (_wide(sums) * weights).sum(axis=1)[..., None]


def rotary_decode_attention(
    qkv: Array,
    q_weight: Array,
    k_weight: Array,
    table: Array,
    positions: Array,
    lengths: Array,
    k_cache: Array,
    v_cache: Array,
    eps: float,
    scale: float,
    P: int,
    BN: int,
) -> tuple[Wide, Wide, Wide]:
    """`decode_attention` after `qk_norm_rope_kv`, each sequence with its cache and its new token in the last slot; (B, (G + 2)
    HKV, D), two (D,), (R, D), two (B,), (B, S, HKV, D) twice -> as `decode_attention`."""
    heads = k_cache.shape[2]
    found: list[tuple[Wide, Wide, Wide]] = []
    for b in range(qkv.shape[0]):
        one = slice(b, b + 1)
        slots = np.asarray(lengths)[one] - 1
        q, k, v = qk_norm_rope_kv(qkv[one], q_weight, k_weight, table, positions[one], slots, k_cache[b], v_cache[b], eps)
        queries = q.reshape(1, heads, -1, q.shape[-1])
        found.append(decode_attention(queries, k[None], v[None], lengths[one], scale, P, BN))
    partial, maxima, sums = zip(*found, strict=True)
    return np.concatenate(partial), np.concatenate(maxima), np.concatenate(sums)


def decode_merge_kv(
    partial: Array,
    maxima: Array,
    sums: Array,
    qkv: Array,
    k_weight: Array,
    table: Array,
    positions: Array,
    slots: Array,
    k_cache: Array,
    v_cache: Array,
    eps: float,
) -> tuple[Wide, Wide, Wide]:
    """`decode_merge`, and both caches with the new tokens' rows; (B, P, HKV, G, D), (B, P, HKV, G) twice, (B, (G + 2) HKV, D),
    (D,), (R, D), two (B,), (B, S, HKV, D) twice -> (B, HKV, G, D), (B, S, HKV, D) twice."""
    keys, values = _wide(k_cache), _wide(v_cache)
    for b in range(qkv.shape[0]):
        one = slice(b, b + 1)
        _, keys[b], values[b] = qk_norm_rope_kv(
            qkv[one], k_weight, k_weight, table, positions[one], slots[one], k_cache[b], v_cache[b], eps
        )
    return decode_merge(partial, maxima, sums), keys, values


def rotary_decode_attention_kv(
    qkv: Array,
    q_weight: Array,
    k_weight: Array,
    table: Array,
    positions: Array,
    lengths: Array,
    k_cache: Array,
    v_cache: Array,
    eps: float,
    scale: float,
) -> tuple[Wide, Wide, Wide]:
    """`rotary_decode_attention` in one part, merged, and both caches with the new tokens' rows; its inputs -> (B, HKV, G, D),
    (B, S, HKV, D) twice."""
    parts = rotary_decode_attention(
        qkv, q_weight, k_weight, table, positions, lengths, k_cache, v_cache, eps, scale, 1, k_cache.shape[1]
    )
    return decode_merge_kv(*parts, qkv, k_weight, table, positions, np.asarray(lengths) - 1, k_cache, v_cache, eps)


def rope_decode_attention(
    qkv: Array, table: Array, positions: Array, lengths: Array, k_cache: Array, v_cache: Array, scale: float, P: int, BN: int
) -> tuple[Wide, Wide, Wide]:
    """`rotary_decode_attention` of heads that have no norm."""
    heads = k_cache.shape[2]
    found: list[tuple[Wide, Wide, Wide]] = []
    for b in range(qkv.shape[0]):
        one = slice(b, b + 1)
        q, k, v = rope_kv(qkv[one], table, positions[one], np.asarray(lengths)[one] - 1, k_cache[b], v_cache[b])
        found.append(decode_attention(q.reshape(1, heads, -1, q.shape[-1]), k[None], v[None], lengths[one], scale, P, BN))
    partial, maxima, sums = zip(*found, strict=True)
    return np.concatenate(partial), np.concatenate(maxima), np.concatenate(sums)


def rope_merge_kv(
    partial: Array,
    maxima: Array,
    sums: Array,
    qkv: Array,
    table: Array,
    positions: Array,
    slots: Array,
    k_cache: Array,
    v_cache: Array,
) -> tuple[Wide, Wide, Wide]:
    """`decode_merge_kv` of heads that have no norm."""
    keys, values = _wide(k_cache), _wide(v_cache)
    for b in range(qkv.shape[0]):
        one = slice(b, b + 1)
        _, keys[b], values[b] = rope_kv(qkv[one], table, positions[one], slots[one], k_cache[b], v_cache[b])
    return decode_merge(partial, maxima, sums), keys, values


def rope_decode_attention_kv(
    qkv: Array, table: Array, positions: Array, lengths: Array, k_cache: Array, v_cache: Array, scale: float
) -> tuple[Wide, Wide, Wide]:
    """`rotary_decode_attention_kv` of heads that have no norm."""
    parts = rope_decode_attention(qkv, table, positions, lengths, k_cache, v_cache, scale, 1, k_cache.shape[1])
    return rope_merge_kv(*parts, qkv, table, positions, np.asarray(lengths) - 1, k_cache, v_cache)


def coded(rows: Array) -> tuple[Wide, Wide]:
    """Codes of rows of f32, and their scales, as caches of codes store them: `(..., D)` -> `(..., D)`, `(...)`. A NaN counts
    for no maximum; infinities become NaN."""
    wide = np.asarray(rows).astype(np.float32)
    scales = np.fmax(np.fmax.reduce(np.abs(wide), axis=-1), np.float32(1e-30)) / np.float32(448)
    with np.errstate(invalid="ignore", over="ignore"):
        codes = (wide / scales[..., None]).astype(float8_e4m3fn)
    return _wide(codes), _wide(scales)


def decoded(codes: Array, scales: Array) -> Wide:
    """Rows of a cache of codes; (..., D), (...) -> (..., D)."""
    return _wide(codes) * _wide(scales)[..., None]


def dequantise_c8(cache: Array, scales: Array, out: Array, filled: int, SLOTS: int) -> Wide:
    """`out` with the rows of the slots before `filled`, up to a multiple of SLOTS; (S, HKV, D), (S, HKV), (S, HKV, D)."""
    found, end = _wide(out), -(-max(0, filled) // SLOTS) * SLOTS
    found[:end] = decoded(cache, scales)[:end]
    return found


def _put(rows: Wide, slots: Array, codes: Array, scales: Array) -> tuple[Wide, Wide]:
    """A cache of codes with rows in their slots; (T, HKV, D), (T,), (S, HKV, D), (S, HKV)."""
    found = _wide(codes), _wide(scales)
    for cache, new in zip(found, coded(rows), strict=True):
        cache[np.asarray(slots)] = new
    return found


def _stored_rows(found: tuple[Wide, Wide, Wide], slots: Array, caches: tuple[Array, ...]) -> tuple[Wide, ...]:
    """Queries, and a sequence's caches of codes, from queries and what caches of 16 bits would have: its new rows are coded."""
    q, k, v = found
    return (q, *_put(k[np.asarray(slots)], slots, *caches[:2]), *_put(v[np.asarray(slots)], slots, *caches[2:]))


def qk_norm_rope_kv_c8(
    qkv: Array, q_weight: Array, k_weight: Array, table: Array, positions: Array, slots: Array, k_cache: Array, k_scales: Array,
    v_cache: Array, v_scales: Array, eps: float,
) -> tuple[Wide, ...]:  # fmt: skip
    """Queries, and keys' and values' codes and scales after the tokens' are in; caches are (S, HKV, D) and (S, HKV)."""
    found = qk_norm_rope_kv(qkv, q_weight, k_weight, table, positions, slots, k_cache, v_cache, eps)
    return _stored_rows(found, slots, (k_cache, k_scales, v_cache, v_scales))


def rope_kv_c8(
    qkv: Array, table: Array, positions: Array, slots: Array, k_cache: Array, k_scales: Array, v_cache: Array, v_scales: Array
) -> tuple[Wide, ...]:
    """`qk_norm_rope_kv_c8` of heads that have no norm."""
    found = rope_kv(qkv, table, positions, slots, k_cache, v_cache)
    return _stored_rows(found, slots, (k_cache, k_scales, v_cache, v_scales))


def _attention_c8(stored: Any, lengths: Array, scale: float, P: int, BN: int) -> tuple[Wide, Wide, Wide]:
    """What parts of each sequence's cache find: `stored(b)` are its queries, and its caches of codes with the new row."""
    parts: list[tuple[Wide, Wide, Wide]] = []
    for b in range(len(lengths)):
        q, keys, k_scales, values, v_scales = stored(b)
        queries = q.reshape(1, keys.shape[1], -1, q.shape[-1])
        k, v = decoded(keys, k_scales)[None], decoded(values, v_scales)[None]
        parts.append(decode_attention(queries, k, v, np.asarray(lengths)[b : b + 1], scale, P, BN, apart=True))
    partial, maxima, sums = zip(*parts, strict=True)
    return np.concatenate(partial), np.concatenate(maxima), np.concatenate(sums)


def _of_sequence(caches: tuple[Array, ...], b: int) -> Any:
    """One sequence's caches."""
    return tuple(cache[b] for cache in caches)


def rotary_decode_attention_c8(
    qkv: Array, q_weight: Array, k_weight: Array, table: Array, positions: Array, lengths: Array, k_cache: Array,
    k_scales: Array, v_cache: Array, v_scales: Array, eps: float, scale: float, P: int, BN: int,
) -> tuple[Wide, Wide, Wide]:  # fmt: skip
    """`rotary_decode_attention` of caches of codes, which have the new row in codes too; (B, S, HKV, D) and (B, S, HKV)."""
    caches, slots = (k_cache, k_scales, v_cache, v_scales), np.asarray(lengths) - 1

    def stored(b: int) -> tuple[Wide, ...]:
        one = slice(b, b + 1)
        own = _of_sequence(caches, b)
        return qk_norm_rope_kv_c8(qkv[one], q_weight, k_weight, table, positions[one], slots[one], *own, eps=eps)

    return _attention_c8(stored, lengths, scale, P, BN)


def rotary_decode_attention_kv_c8(
    qkv: Array, q_weight: Array, k_weight: Array, table: Array, positions: Array, lengths: Array, k_cache: Array,
    k_scales: Array, v_cache: Array, v_scales: Array, eps: float, scale: float,
) -> tuple[Wide, ...]:  # fmt: skip
    """`rotary_decode_attention_c8` in one part, merged, and the caches with the new rows."""
    caches = (k_cache, k_scales, v_cache, v_scales)
    parts = rotary_decode_attention_c8(
        qkv, q_weight, k_weight, table, positions, lengths, *caches, eps, scale, 1, k_cache.shape[1]
    )
    return decode_merge_kv_c8(*parts, qkv, k_weight, table, positions, np.asarray(lengths) - 1, *caches, eps)


def decode_merge_kv_c8(
    partial: Array, maxima: Array, sums: Array, qkv: Array, k_weight: Array, table: Array, positions: Array, slots: Array,
    k_cache: Array, k_scales: Array, v_cache: Array, v_scales: Array, eps: float,
) -> tuple[Wide, ...]:  # fmt: skip
    """`decode_merge`, and caches of codes with the new tokens' rows."""
    after = tuple(_wide(cache) for cache in (k_cache, k_scales, v_cache, v_scales))
    for b in range(qkv.shape[0]):
        one = slice(b, b + 1)
        own = _of_sequence(after, b)
        _, *new = qk_norm_rope_kv_c8(qkv[one], k_weight, k_weight, table, positions[one], slots[one], *own, eps=eps)
        for cache, rows in zip(after, new, strict=True):
            cache[b] = rows
    return (decode_merge(partial, maxima, sums), *after)


def rope_decode_attention_c8(
    qkv: Array, table: Array, positions: Array, lengths: Array, k_cache: Array, k_scales: Array, v_cache: Array,
    v_scales: Array, scale: float, P: int, BN: int,
) -> tuple[Wide, Wide, Wide]:  # fmt: skip
    """`rotary_decode_attention_c8` of heads that have no norm."""
    caches, slots = (k_cache, k_scales, v_cache, v_scales), np.asarray(lengths) - 1

    def stored(b: int) -> tuple[Wide, ...]:
        one = slice(b, b + 1)
        own = _of_sequence(caches, b)
        return rope_kv_c8(qkv[one], table, positions[one], slots[one], *own)

    return _attention_c8(stored, lengths, scale, P, BN)


def rope_decode_attention_kv_c8(
    qkv: Array, table: Array, positions: Array, lengths: Array, k_cache: Array, k_scales: Array, v_cache: Array,
    v_scales: Array, scale: float,
) -> tuple[Wide, ...]:  # fmt: skip
    """`rotary_decode_attention_kv_c8` of heads that have no norm."""
    caches = (k_cache, k_scales, v_cache, v_scales)
    parts = rope_decode_attention_c8(qkv, table, positions, lengths, *caches, scale, 1, k_cache.shape[1])
    return rope_merge_kv_c8(*parts, qkv, table, positions, np.asarray(lengths) - 1, *caches)


def rope_merge_kv_c8(
    partial: Array, maxima: Array, sums: Array, qkv: Array, table: Array, positions: Array, slots: Array, k_cache: Array,
    k_scales: Array, v_cache: Array, v_scales: Array,
) -> tuple[Wide, ...]:  # fmt: skip
    """`decode_merge_kv_c8` of heads that have no norm."""
    after = tuple(_wide(cache) for cache in (k_cache, k_scales, v_cache, v_scales))
    for b in range(qkv.shape[0]):
        one = slice(b, b + 1)
        own = _of_sequence(after, b)
        _, *new = rope_kv_c8(qkv[one], table, positions[one], slots[one], *own)
        for cache, rows in zip(after, new, strict=True):
            cache[b] = rows
    return (decode_merge(partial, maxima, sums), *after)
