"""What each kernel computes, in float64 NumPy: the truth that tests and benchmarks compare with.

One function per kernel, of the same name, taking the kernel's inputs in its parameter order and returning its outputs in
that order. Floating inputs may have any dtype and are widened to float64 first; nothing is rounded to the kernel's dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_dtypes import float8_e4m3fn
from numpy.typing import NDArray

Array = NDArray[Any]
Wide = NDArray[np.float64]


def _wide(array: Array) -> Wide:
    return np.asarray(array).astype(np.float64)


def add(x: Array, y: Array) -> Wide:
    """`x + y`; (N,), (N,) -> (N,)."""
    return _wide(x) + _wide(y)


def silu_mul(gate: Array, up: Array) -> Wide:
    """`silu(gate) * up`; (N,), (N,) -> (N,)."""
    wide = _wide(gate)
    return wide / (1.0 + np.exp(-wide)) * _wide(up)


def rms_norm(x: Array, weight: Array, eps: float) -> Wide:
    """Root-mean-square norm of each row times the weight; (T, H), (H,) -> (T, H)."""
    wide = _wide(x)
    return wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + eps) * _wide(weight)


def add_rms_norm(x: Array, residual: Array, weight: Array, eps: float) -> tuple[Wide, Wide]:
    """The new residual and the norm of it; (T, H), (T, H), (H,) -> (T, H), (T, H).

    The kernel normalises the sum as stored, so the sum is rounded to the dtype of `residual` before the norm.
    """
    total = _wide(x) + _wide(residual)
    stored = total.astype(np.asarray(residual).dtype)
    return total, rms_norm(stored, weight, eps)


def add_rms_norm_splits(parts: Array, residual: Array, weight: Array, eps: float) -> tuple[Wide, Wide]:
    """`add_rms_norm` of the sum of the parts; (S, T, H), (T, H), (H,) -> (T, H), (T, H)."""
    return add_rms_norm(merge_splits(parts), residual, weight, eps)


def embedding(ids: Array, table: Array) -> Wide:
    """Rows of the table; (T,), (V, H) -> (T, H)."""
    return _wide(table)[np.asarray(ids)]


def gather_row(x: Array, index: Array) -> Wide:
    """One row; (T, H), (1,) -> (1, H)."""
    return _wide(x)[np.asarray(index)]


def argmax_reduce(maxima: Array, indices: Array) -> NDArray[np.int32]:
    """Lowest index among the parts with the greatest maximum; (B, P), (B, P) -> (B,)."""
    best = maxima == maxima.max(axis=1, keepdims=True)
    return np.where(best, indices, np.iinfo(np.int32).max).min(axis=1).astype(np.int32)


def argmax_blocks(logits: Array, block: int) -> tuple[Wide, NDArray[np.int32]]:
    """The greatest of each part of `block` columns and the lowest column that holds it; (B, V) -> (B, P), (B, P)."""
    wide = _wide(logits)
    cut = [wide[:, at : at + block] for at in range(0, wide.shape[1], block)]
    maxima = np.stack([part.max(axis=1) for part in cut], axis=1)
    return maxima, np.stack([part.argmax(axis=1) + at * block for at, part in enumerate(cut)], axis=1).astype(np.int32)


def advance(token: Array, positions: Array, vocab_size: int) -> tuple[Array, Array, Array, Array]:
    """Next `ids`, `positions`, `slots` and `lengths`; (1,), (1,) -> (1,) each."""
    following = np.asarray(positions) + np.int32(1)
    chosen = np.asarray(token)
    return np.where((chosen >= 0) & (chosen < vocab_size), chosen, 0), following, following, following + np.int32(1)


def advance_rows(
    token: Array, going: Array, positions: Array, vocab_size: int
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """Next `ids`, `positions`, `slots` and `lengths`; (B,), (B,), (B,) -> (B,) each."""
    ids, _, _, _ = advance(token, positions, vocab_size)
    following = np.asarray(positions) + np.asarray(going)
    return ids, following, following, following + np.int32(1)


def next_ids(token: Array, vocab_size: int) -> Array:
    """Next `ids`, (T,) -> (T,); a token outside the vocabulary becomes 0."""
    return np.where((token >= 0) & (token < vocab_size), token, 0)


def matvec(x: Array, w: Array) -> Wide:
    """`x @ w.T`; (B, K), (N, K) -> (B, N)."""
    return _wide(x) @ _wide(w).T


def dequantise_fp8(w: Array, w_scales: Array) -> Wide:
    """Each weight times the scale of its block of 128 x 128; (N, K), (N / 128, K / 128) -> (N, K)."""
    return _wide(w) * _wide(w_scales).repeat(128, axis=0).repeat(128, axis=1)


def scaled_matvec_fp8(x: Array, squares: Array, w: Array, w_scales: Array, eps: float) -> Wide:
    """`scaled_matvec` of these weights; (1, K), (1, K / 4), (N, K), (N / 128, K / 128) -> (1, N)."""
    return scaled_matvec(x, squares, dequantise_fp8(w, w_scales), eps)


def scaled_matvec_silu_mul_fp8(x: Array, squares: Array, w: Array, w_scales: Array, eps: float) -> Wide:
    """`scaled_matvec_silu_mul` of these weights; (1, K), (1, K / 4), (2 I, K), (2 I / 128, K / 128) -> (1, I)."""
    return scaled_matvec_silu_mul(x, squares, dequantise_fp8(w, w_scales), eps)


def matvec_add_fp8(x: Array, w: Array, w_scales: Array, residual: Array) -> Wide:
    """`matvec_add` of these weights; (1, K), (N, K), (N / 128, K / 128), (1, N) -> (1, N)."""
    return matvec_add(x, dequantise_fp8(w, w_scales), residual)


def matvec_add_scaled_fp8(
    x: Array, w: Array, w_scales: Array, residual: Array, weight: Array, rows: int
) -> tuple[Wide, Wide, Wide]:  # fmt: skip
    """`matvec_add_scaled` of these weights; (1, K), (N, K), (N / 128, K / 128), (1, N), (N,) -> (1, N) twice,
    (1, N / rows)."""
    return matvec_add_scaled(x, dequantise_fp8(w, w_scales), residual, weight, rows)


def dequantise_int4(w: Array, w_scales: Array, w_zeros: Array) -> Wide:
    """Each four bits of `w`, low ones first, minus the zero point and times the scale of its 128 columns; (N, K / 8),
    (K / 128, N) twice -> (N, K)."""
    q = (w.astype(np.int64)[..., None] >> np.arange(0, 32, 4) & 15).reshape(len(w), -1)
    return (q - w_zeros.T.astype(np.int64).repeat(128, axis=1)) * _wide(w_scales).T.repeat(128, axis=1)


def int4_tensors(packed: Array, scales: Array, zeros: Array | None = None) -> tuple[Array, Array, Array]:
    """`w`, `w_scales` and `w_zeros` from the form that loaders have (`engine.formats.forms.Int4`): scales and zero points are
    transposed, and zero points that are missing are 8; (N, K / 8), (N, K / 128) twice -> (N, K / 8), (K / 128, N) twice."""
    all_zeros = np.full(scales.shape, 8, np.uint8) if zeros is None else zeros
    return packed, np.ascontiguousarray(scales.T), np.ascontiguousarray(all_zeros.T)


def dequantise_int4_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """Words of all values, and zero points of four bits."""
    rows, columns = int(dims["I2"] if "I2" in dims else dims["N"]), int(dims["K"])
    words = rng.integers(0, 2**32, (rows, columns // 8), dtype=np.uint32)
    return {"w": words, "w_zeros": rng.integers(0, 16, (columns // 128, rows), dtype=np.uint8)}


scaled_matvec_int4_inputs = scaled_matvec_silu_mul_int4_inputs = dequantise_int4_inputs
matvec_add_int4_inputs = matvec_add_scaled_int4_inputs = dequantise_int4_inputs
scaled_matvec_rows_int4_inputs = scaled_matvec_silu_mul_rows_int4_inputs = dequantise_int4_inputs
matvec_add_scaled_rows_int4_inputs = dequantise_int4_inputs


def matmul_few_int4_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """The same under the names of operands."""
    return {name.replace("w", "b"): value for name, value in dequantise_int4_inputs(rng, dims).items()}


matmul_split_int4_inputs = matmul_silu_mul_few_int4_inputs = matmul_few_int4_inputs


def scaled_matvec_int4(x: Array, squares: Array, w: Array, w_scales: Array, w_zeros: Array, eps: float) -> Wide:
    """`scaled_matvec` of these weights; (1, K), (1, K / 4), (N, K / 8), (K / 128, N) twice -> (1, N)."""
    return scaled_matvec(x, squares, dequantise_int4(w, w_scales, w_zeros), eps)


def scaled_matvec_silu_mul_int4(x: Array, squares: Array, w: Array, w_scales: Array, w_zeros: Array, eps: float) -> Wide:
    """`scaled_matvec_silu_mul` of these weights; (1, K), (1, K / 4), (2 I, K / 8), (K / 128, 2 I) twice -> (1, I)."""
    return scaled_matvec_silu_mul(x, squares, dequantise_int4(w, w_scales, w_zeros), eps)


def matvec_add_int4(x: Array, w: Array, w_scales: Array, w_zeros: Array, residual: Array) -> Wide:
    """`matvec_add` of these weights; (1, K), (N, K / 8), (K / 128, N) twice, (1, N) -> (1, N)."""
    return matvec_add(x, dequantise_int4(w, w_scales, w_zeros), residual)


def matvec_add_scaled_int4(
    x: Array, w: Array, w_scales: Array, w_zeros: Array, residual: Array, weight: Array
) -> tuple[Wide, Wide, Wide]:  # fmt: skip
    """`matvec_add_scaled` of these weights; (1, K), (N, K / 8), (K / 128, N) twice, (1, N), (N,) -> (1, N) twice,
    (1, N / 4)."""
    return matvec_add_scaled(x, dequantise_int4(w, w_scales, w_zeros), residual, weight, 4)


def scaled_matvec_rows_int4(x: Array, squares: Array, w: Array, w_scales: Array, w_zeros: Array, eps: float) -> Wide:
    """`scaled_matvec_rows` of these weights; (B, K), (B, K / 16), (N, K / 8), (K / 128, N) twice -> (B, N)."""
    return scaled_matvec_rows(x, squares, dequantise_int4(w, w_scales, w_zeros), eps)


def scaled_matvec_silu_mul_rows_int4(x: Array, squares: Array, w: Array, w_scales: Array, w_zeros: Array, eps: float) -> Wide:
    """`scaled_matvec_silu_mul_rows` of these weights; (B, K), (B, K / 16), (2 I, K / 8), (K / 128, 2 I) twice -> (B, I)."""
    return scaled_matvec_silu_mul_rows(x, squares, dequantise_int4(w, w_scales, w_zeros), eps)


def matvec_add_scaled_rows_int4(
    x: Array, w: Array, w_scales: Array, w_zeros: Array, residual: Array, weight: Array, rows: int
) -> tuple[Wide, Wide, Wide]:  # fmt: skip
    """`matvec_add_scaled_rows` of these weights; (B, K), (N, K / 8), (K / 128, N) twice, (B, N), (N,) -> (B, N) twice,
    (B, N / rows)."""
    return matvec_add_scaled_rows(x, dequantise_int4(w, w_scales, w_zeros), residual, weight, rows)


def scaled_matvec(x: Array, squares: Array, w: Array, eps: float) -> Wide:
    """`x @ w.T` times the norm's scale, from the sums of squares; (1, K), (1, K / 4), (N, K) -> (1, N)."""
    return scaled_matvec_rows(x, squares, w, eps)


def scaled_matvec_rows(x: Array, squares: Array, w: Array, eps: float) -> Wide:
    """`scaled_matvec` of each row; (B, K), (B, K / 16), (N, K) -> (B, N)."""
    return matvec(x, w) / np.sqrt(_wide(squares).sum(axis=1, keepdims=True) / x.shape[1] + eps)


def matmul(a: Array, b: Array) -> Wide:
    """`a @ b.T`; (M, K), (N, K) -> (M, N)."""
    return _wide(a) @ _wide(b).T


def matmul_few(a: Array, b: Array) -> Wide:
    """`matmul`, made in another way."""
    return matmul(a, b)


def matmul_split(a: Array, b: Array, S: int, bk: int) -> Wide:
    """`a @ b.T` over each of `S` runs of steps of `bk` columns, zero where a run has none; (M, K), (N, K) -> (S, M, N)."""
    steps = -(-a.shape[1] // bk)
    run = -(-steps // S) * bk
    return np.stack([matmul(a[:, first : first + run], b[:, first : first + run]) for first in range(0, S * run, run)])


def merge_splits(parts: Array) -> Wide:
    """Sum of the parts; (S, M, N) -> (M, N)."""
    return _wide(parts).sum(axis=0)


def matvec_add(x: Array, w: Array, residual: Array) -> Wide:
    """`residual + x @ w.T`; (B, K), (N, K), (B, N) -> (B, N)."""
    return _wide(residual) + _wide(x) @ _wide(w).T


def matvec_add_scaled(x: Array, w: Array, residual: Array, weight: Array, rows: int) -> tuple[Wide, Wide, Wide]:
    """The new residual, and of it as it is stored the product with the weight and the sum of squares of each `rows`;
    (1, K), (N, K), (1, N), (N,) -> (1, N), (1, N), (1, N / rows)."""
    return matvec_add_scaled_rows(x, w, residual, weight, rows)


def matvec_add_scaled_rows(x: Array, w: Array, residual: Array, weight: Array, rows: int) -> tuple[Wide, Wide, Wide]:
    """`matvec_add_scaled` of each row; (B, K), (N, K), (B, N), (N,) -> (B, N), (B, N), (B, N / rows)."""
    total = matvec_add(x, w, residual)
    stored = _wide(total.astype(np.float32).astype(np.asarray(residual).dtype))
    return total, stored * _wide(weight), (stored * stored).reshape(len(stored), -1, rows).sum(axis=2)


def scaled_matvec_rows_fp8(x: Array, squares: Array, w: Array, w_scales: Array, eps: float) -> Wide:
    """`scaled_matvec_rows` of FP8 weights; (B, K), (B, K / 16), (N, K), (N / 128, K / 128) -> (B, N)."""
    return scaled_matvec_rows(x, squares, dequantise_fp8(w, w_scales), eps)


def scaled_matvec_silu_mul_rows_fp8(x: Array, squares: Array, w: Array, w_scales: Array, eps: float) -> Wide:
    """`scaled_matvec_silu_mul_rows` of FP8 weights; (B, K), (B, K / 16), (2 I, K), (2 I / 128, K / 128) -> (B, I)."""
    return scaled_matvec_silu_mul_rows(x, squares, dequantise_fp8(w, w_scales), eps)


def matvec_add_scaled_rows_fp8(
    x: Array, w: Array, w_scales: Array, residual: Array, weight: Array, rows: int
) -> tuple[Wide, Wide, Wide]:  # fmt: skip
    """`matvec_add_scaled_rows` of FP8 weights; (B, K), (N, K), (N / 128, K / 128), (B, N), (N,) -> (B, N) twice,
    (B, N / rows)."""
    return matvec_add_scaled_rows(x, dequantise_fp8(w, w_scales), residual, weight, rows)


def embedding_scaled(ids: Array, table: Array, weight: Array) -> tuple[Wide, Wide, Wide]:
    """A row of the table, it times the weight, and the sums of squares of each four; (1,), (V, H), (H,) -> (1, H) twice,
    (1, H / 4)."""
    row = embedding(ids, table)
    return row, row * _wide(weight), (row * row).reshape(1, -1, 4).sum(axis=2)


def embedding_scaled_rows(ids: Array, table: Array, weight: Array) -> tuple[Wide, Wide, Wide]:
    """Rows of the table, they times the weight, and the sums of squares of each 16; (B,), (V, H), (H,) -> (B, H) twice,
    (B, H / 16)."""
    rows = embedding(ids, table)
    return rows, rows * _wide(weight), (rows * rows).reshape(len(rows), -1, 16).sum(axis=2)


def matvec_argmax(x: Array, w: Array, P: int, rows: int) -> tuple[Wide, NDArray[np.int32]]:
    """Maximum and its column for each of `P` parts, part p having every `P`-th group of `rows` columns of
    `x @ w.T` rounded to the dtype of `x`; -inf at 2^31 - 1 where it has none; (B, K), (V, K) -> (B, P), (B, P)."""
    return _argmax_of_parts(matvec(x, w), np.asarray(x).dtype, P, rows)


def scaled_matvec_argmax_rows(
    x: Array, squares: Array, w: Array, eps: float, P: int, rows: int
) -> tuple[Wide, NDArray[np.int32]]:  # fmt: skip
    """The same of `scaled_matvec_rows`; (B, K), (B, K / 16), (V, K) -> (B, P), (B, P)."""
    return _argmax_of_parts(scaled_matvec_rows(x, squares, w, eps), np.asarray(x).dtype, P, rows)


def _argmax_of_parts(exact: Wide, dtype: Any, P: int, rows: int) -> tuple[Wide, NDArray[np.int32]]:
    logits = _wide(exact.astype(np.float32).astype(dtype))
    owner = np.asarray(range(logits.shape[1])) // rows % P
    maxima = np.full((logits.shape[0], P), -np.inf)
    indices = np.full(maxima.shape, np.iinfo(np.int32).max, np.int32)
    for part in range(min(P, -(-logits.shape[1] // rows))):
        mine = np.flatnonzero(owner == part)
        maxima[:, part] = logits[:, mine].max(axis=1)
        indices[:, part] = mine[logits[:, mine].argmax(axis=1)]
    return maxima, indices


def scaled_matvec_silu_mul(x: Array, squares: Array, w: Array, eps: float) -> Wide:
    """`silu(gate) * up` of both halves of `scaled_matvec`; (1, K), (1, K / 4), (2 I, K) -> (1, I)."""
    return scaled_matvec_silu_mul_rows(x, squares, w, eps)


def scaled_matvec_silu_mul_rows(x: Array, squares: Array, w: Array, eps: float) -> Wide:
    """`silu(gate) * up` of both halves of `scaled_matvec_rows`; (B, K), (B, K / 16), (2 I, K) -> (B, I)."""
    gate, up = np.split(scaled_matvec_rows(x, squares, w, eps), 2, axis=1)
    return silu_mul(gate, up)


def matmul_silu_mul(a: Array, b: Array) -> Wide:
    """`silu(a @ gate.T) * (a @ up.T)`, `b` holding gate, then up; (M, K), (2, I, K) -> (M, I)."""
    gate, up = (matmul(a, half) for half in b)
    return silu_mul(gate, up)


def matmul_silu_mul_few(a: Array, b: Array) -> Wide:
    """`matmul_silu_mul`, made in another way."""
    return matmul_silu_mul(a, b)


def matmul_few_fp8(a: Array, b: Array, b_scales: Array) -> Wide:
    """`matmul` of these weights; (M, K), (N, K), (N / 128, K / 128) -> (M, N)."""
    return matmul(a, dequantise_fp8(b, b_scales))


def matmul_split_fp8(a: Array, b: Array, b_scales: Array, S: int, bk: int) -> Wide:
    """`matmul_split` of these weights; (M, K), (N, K), (N / 128, K / 128) -> (S, M, N)."""
    return matmul_split(a, dequantise_fp8(b, b_scales), S, bk)


def matmul_silu_mul_few_fp8(a: Array, b: Array, b_scales: Array) -> Wide:
    """`matmul_silu_mul` of these weights; (M, K), (2 I, K), (2 I / 128, K / 128) -> (M, I)."""
    return matmul_silu_mul(a, np.stack(np.split(dequantise_fp8(b, b_scales), 2)))


def matmul_few_int4(a: Array, b: Array, b_scales: Array, b_zeros: Array) -> Wide:
    """`matmul` of these weights; (M, K), (N, K / 8), (K / 128, N) twice -> (M, N)."""
    return matmul(a, dequantise_int4(b, b_scales, b_zeros))


def matmul_split_int4(a: Array, b: Array, b_scales: Array, b_zeros: Array, S: int, bk: int) -> Wide:
    """`matmul_split` of these weights; (M, K), (N, K / 8), (K / 128, N) twice -> (S, M, N)."""
    return matmul_split(a, dequantise_int4(b, b_scales, b_zeros), S, bk)


def matmul_silu_mul_few_int4(a: Array, b: Array, b_scales: Array, b_zeros: Array) -> Wide:
    """`matmul_silu_mul` of these weights; (M, K), (2 I, K / 8), (K / 128, 2 I) twice -> (M, I)."""
    return matmul_silu_mul(a, np.stack(np.split(dequantise_int4(b, b_scales, b_zeros), 2)))


def quantise_rows(x: Array) -> tuple[Wide, Wide]:
    """Codes, rounded to eight bits, and scales of blocks of 128 columns; (M, K) -> (M, K), (K / 128, M).

    Both are what the kernel stores, of quotients and products in f32. A NaN counts for no maximum.
    """
    rows, columns = x.shape
    wide = np.asarray(x).astype(np.float32).reshape(rows, columns // 128, 128)
    with np.errstate(invalid="ignore"):
        tops = np.fmax(np.fmax.reduce(np.abs(wide), axis=2), np.float32(1e-10))
        codes = (wide * (np.float32(448) / tops)[:, :, None]).astype(float8_e4m3fn)
    return _wide(codes).reshape(rows, columns), _wide((tops / np.float32(448)).T)


def matmul_fp8(a: Array, a_scales: Array, b: Array, b_scales: Array) -> Wide:
    """`a @ b.T` of codes times the scales of their blocks of 128; (M, K), (K / 128, M), (N, K),
    (N / 128, K / 128) -> (M, N)."""
    return (_wide(a) * _wide(a_scales).T.repeat(128, axis=1)) @ dequantise_fp8(b, b_scales).T


def matmul_silu_mul_fp8(a: Array, a_scales: Array, b: Array, b_scales: Array) -> Wide:
    """`silu(gate) * up` of two such products; (M, K), (K / 128, M), (2, I, K), (2, I / 128, K / 128) -> (M, I)."""
    gate, up = (matmul_fp8(a, a_scales, b[side], b_scales[side]) for side in (0, 1))
    return silu_mul(gate, up)


def topk_blocks(logits: Array, top_k: NDArray[np.int32], block: int, K: int) -> tuple[Wide, NDArray[np.int32]]:
    """The `top_k` largest of each part of `block` columns, descending, the lowest column first among equals, then -inf at
    column V up to `K`; (B, V), (B,) -> (B, P, K), (B, P, K)."""
    wide = _wide(logits)
    rows, width = wide.shape
    parts = -(-width // block)
    padded = np.full((rows, parts * block), -np.inf)
    padded[:, :width] = wide
    cut = np.pad(padded.reshape(rows, parts, block), ((0, 0), (0, 0), (0, max(K - block, 0))), constant_values=-np.inf)
    order: NDArray[np.int64] = np.argsort(-cut, axis=2, kind="stable")[:, :, :K]
    best = np.take_along_axis(cut, order, axis=2)
    best[np.arange(K) >= np.broadcast_to(top_k[:, None, None], best.shape)] = -np.inf
    starts = np.asarray(range(0, parts * block, block), dtype=np.int64)
    columns = (order + starts[None, :, None]).astype(np.int32)
    columns[np.isinf(best)] = width
    return best, columns


def sample_token(
    best: Array, indices: Array, top_k: Array, temperature: Array, top_p: Array, uniforms: Array, place: Array
) -> NDArray[np.int32]:
    """The token that each row draws; (B, P, K), (B, P, K), (B,), (B,), (B,), (B, S), (B,) -> (B,). NotImplementedError for
    candidates that do not descend in each part or share an index, and for settings that no engine sends."""
    descending = (best[:, :, 1:] <= best[:, :, :-1]).all() and all(np.unique(row).size == row.size for row in indices)
    allowed = ((temperature > 0) & (top_p > 0) & (top_p <= 1)).all() and ((uniforms >= 0) & (uniforms < 1)).all()
    if not (descending and allowed):
        raise NotImplementedError("it takes candidates as `topk_blocks` leaves them, and settings that the engine allows")
    drawn: list[int] = []
    for row, count in enumerate(top_k):
        values, columns = _wide(best[row]).ravel(), indices[row].ravel()
        order = np.lexsort((columns, -values))[: int(count)]
        weights = np.exp((values[order] - values[order[0]]) / float(temperature[row]))
        before = np.cumsum(weights) - weights
        kept = order[(before < float(top_p[row]) * weights.sum()) & (weights > 0)]
        reached: Wide = np.cumsum(weights[: len(kept)])
        goal = float(uniforms[row, place[row]]) * reached[-1]
        drawn.append(int(columns[kept[min(int((reached <= goal).sum()), len(kept) - 1)]]))
    return np.asarray(drawn, np.int32)
