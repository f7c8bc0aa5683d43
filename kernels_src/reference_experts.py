"""What the kernels of mixtures of experts compute for single tokens, in float64 NumPy.

Conventions are those of `reference`. `experts` and `weights` are (T, C): the experts of each token, and what each counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from reference import dequantise_fp8, dequantise_int4

Array = NDArray[Any]
Wide = NDArray[np.float64]


def _wide(array: Array) -> Wide:
    return np.asarray(array).astype(np.float64)


def route_experts(logits: Array, C: int, normalize: bool) -> tuple[NDArray[np.int32], Wide]:
    """The `C` experts with the largest logits, the largest first, the lower one among equals, NaN above all numbers, and their
    softmax, divided by its sum over the `C` if `normalize`; (T, X) -> (T, C), (T, C)."""
    wide = _wide(logits)
    keys = np.where(np.isnan(wide), np.inf, wide)
    order: NDArray[np.int64] = np.lexsort((-keys, ~np.isnan(wide)), axis=1)[:, :C]  # stable: equals stay in order
    with np.errstate(invalid="ignore"):
        powers = np.exp(wide - wide.max(axis=1, keepdims=True))
        chosen = np.take_along_axis(powers, order, axis=1)
        weights = chosen / (chosen if normalize else powers).sum(axis=1, keepdims=True)
    return order.astype(np.int32), weights


def experts_silu_mul(x: Array, squares: Array, experts: Array, w: Array, eps: float) -> Wide:
    """`silu(gate) * up` for each expert of each row, `gate` and `up` the halves of its weights times the row and the norm's
    scale; (T, K), (T, K / GROUP), (T, C), (X, 2 I, K) -> (T, C, I)."""
    scale = 1.0 / np.sqrt(_wide(squares).sum(axis=1) / x.shape[1] + eps)
    both = np.einsum("tcnk,tk->tcn", _wide(w)[experts], _wide(x)) * scale[:, None, None]
    gate, up = np.split(both, 2, axis=2)
    return gate / (1.0 + np.exp(-gate)) * up


def experts_add(x: Array, experts: Array, weights: Array, w: Array, residual: Array) -> Wide:
    """The residual plus each token's products with its experts, times their weights; (T, C, K), (T, C), (T, C), (X, N, K),
    (T, N) -> (T, N)."""
    return _wide(residual) + np.einsum("tc,tcnk,tck->tn", _wide(weights), _wide(w)[experts], _wide(x))


def experts_add_scaled(
    x: Array, experts: Array, weights: Array, w: Array, residual: Array, weight: Array, group: int
) -> tuple[Wide, Wide, Wide]:  # fmt: skip
    """The new residual of `experts_add`, and of it as it is stored the product with the weight and the sum of squares of each
    `group`; (T, C, K), (T, C), (T, C), (X, N, K), (T, N), (N,) -> (T, N), (T, N), (T, N / group)."""
    total = experts_add(x, experts, weights, w, residual)
    stored = _wide(total.astype(np.float32).astype(np.asarray(residual).dtype))
    return total, stored * _wide(weight), (stored * stored).reshape(len(stored), -1, group).sum(axis=2)


def experts_down(x: Array, experts: Array, weights: Array, w: Array) -> Wide:
    """Each token's products with its experts, times their weights; (T, C, K), (T, C), (T, C), (X, N, K) -> (T, N)."""
    return np.einsum("tc,tcnk,tck->tn", _wide(weights), _wide(w)[experts], _wide(x))


def _eight_bits(w: Array, w_scales: Array) -> Wide:
    """`dequantise_fp8` of each expert; (X, N, K), (X, N / 128, K / 128) -> (X, N, K)."""
    return np.stack([dequantise_fp8(*one) for one in zip(w, w_scales, strict=True)])


def _four_bits(w: Array, w_scales: Array, w_zeros: Array) -> Wide:
    """`dequantise_int4` of each expert; (X, N, K / 8), (X, K / 128, N) twice -> (X, N, K)."""
    return np.stack([dequantise_int4(*one) for one in zip(w, w_scales, w_zeros, strict=True)])


def experts_silu_mul_fp8(x: Array, squares: Array, experts: Array, w: Array, w_scales: Array, eps: float) -> Wide:
    """`experts_silu_mul` of these weights; (T, K), (T, K / GROUP), (T, C), (X, 2 I, K), (X, 2 I / 128, K / 128) ->
    (T, C, I)."""
    return experts_silu_mul(x, squares, experts, _eight_bits(w, w_scales), eps)


def experts_add_fp8(x: Array, experts: Array, weights: Array, w: Array, w_scales: Array, residual: Array) -> Wide:
    """`experts_add` of these weights; (T, C, K), (T, C), (T, C), (X, N, K), (X, N / 128, K / 128), (T, N) -> (T, N)."""
    return experts_add(x, experts, weights, _eight_bits(w, w_scales), residual)


def experts_add_scaled_fp8(
    x: Array, experts: Array, weights: Array, w: Array, w_scales: Array, residual: Array, weight: Array, group: int
) -> tuple[Wide, Wide, Wide]:  # fmt: skip
    """`experts_add_scaled` of these weights; (T, C, K), (T, C), (T, C), (X, N, K), (X, N / 128, K / 128), (T, N), (N,) ->
    (T, N), (T, N), (T, N / group)."""
    return experts_add_scaled(x, experts, weights, _eight_bits(w, w_scales), residual, weight, group)


def experts_down_fp8(x: Array, experts: Array, weights: Array, w: Array, w_scales: Array) -> Wide:
    """`experts_down` of these weights; (T, C, K), (T, C), (T, C), (X, N, K), (X, N / 128, K / 128) -> (T, N)."""
    return experts_down(x, experts, weights, _eight_bits(w, w_scales))


def experts_silu_mul_int4(
    x: Array, squares: Array, experts: Array, w: Array, w_scales: Array, w_zeros: Array, eps: float
) -> Wide:  # fmt: skip
    """`experts_silu_mul` of these weights; (T, K), (T, K / GROUP), (T, C), (X, 2 I, K / 8), (X, K / 128, 2 I) twice ->
    (T, C, I)."""
    return experts_silu_mul(x, squares, experts, _four_bits(w, w_scales, w_zeros), eps)


def experts_add_int4(
    x: Array, experts: Array, weights: Array, w: Array, w_scales: Array, w_zeros: Array, residual: Array
) -> Wide:  # fmt: skip
    """`experts_add` of these weights; (T, C, K), (T, C), (T, C), (X, N, K / 8), (X, K / 128, N) twice, (T, N) -> (T, N)."""
    return experts_add(x, experts, weights, _four_bits(w, w_scales, w_zeros), residual)


def experts_add_scaled_int4(
    x: Array, experts: Array, weights: Array, w: Array, w_scales: Array, w_zeros: Array, residual: Array, weight: Array,
    group: int,
) -> tuple[Wide, Wide, Wide]:  # fmt: skip
    """`experts_add_scaled` of these weights; (T, C, K), (T, C), (T, C), (X, N, K / 8), (X, K / 128, N) twice, (T, N), (N,) ->
    (T, N), (T, N), (T, N / group)."""
    return experts_add_scaled(x, experts, weights, _four_bits(w, w_scales, w_zeros), residual, weight, group)


def experts_down_int4(x: Array, experts: Array, weights: Array, w: Array, w_scales: Array, w_zeros: Array) -> Wide:
    """`experts_down` of these weights; (T, C, K), (T, C), (T, C), (X, N, K / 8), (X, K / 128, N) twice -> (T, N)."""
    return experts_down(x, experts, weights, _four_bits(w, w_scales, w_zeros))


def experts_silu_mul_int4_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """Words of all values, and zero points of four bits."""
    experts, rows, columns = int(dims["X"]), int(dims["I2"] if "I2" in dims else dims["N"]), int(dims["K"])
    words = rng.integers(0, 2**32, (experts, rows, columns // 8), dtype=np.uint32)
    return {"w": words, "w_zeros": rng.integers(0, 16, (experts, columns // 128, rows), dtype=np.uint8)}


experts_add_int4_inputs = experts_add_scaled_int4_inputs = experts_down_int4_inputs = experts_silu_mul_int4_inputs
