"""What the kernels of stacks of weights in codes compute, in float64 NumPy. Conventions are those of `reference`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from reference_experts_tiles import experts_matmul, experts_matmul_silu_mul

Array = NDArray[Any]
Wide = NDArray[np.float64]


def dequantise_each_fp8(w: Array, w_scales: Array) -> Wide:
    """Each weight times the scale of its block of 128 x 128; (X, N, K), (X, N / 128, K / 128) -> (X, N, K)."""
    return w.astype(np.float64) * w_scales.astype(np.float64).repeat(128, axis=1).repeat(128, axis=2)


def dequantise_each_int4(w: Array, w_scales: Array, w_zeros: Array) -> Wide:
    """Each four bits of `w`, low ones first, minus the zero point and times the scale of its 128 columns; (X, N, K / 8),
    (X, K / 128, N) twice -> (X, N, K)."""
    q = (w.astype(np.int64)[..., None] >> np.arange(0, 32, 4) & 15).reshape(*w.shape[:2], -1)
    scales: Wide = np.swapaxes(w_scales.astype(np.float64), 1, 2).repeat(128, axis=2)
    return (q - np.swapaxes(w_zeros.astype(np.int64), 1, 2).repeat(128, axis=2)) * scales


def dequantise_each_int4_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """Words of all values, and zero points of four bits."""
    experts, rows, columns = (int(dims[name]) for name in ("X", "N", "K"))
    words = rng.integers(0, 2**32, (experts, rows, columns // 8), dtype=np.uint32)
    return {"w": words, "w_zeros": rng.integers(0, 16, (experts, columns // 128, rows), dtype=np.uint8)}


def experts_matmul_few_fp8(a: Array, tiles: Array, b: Array, b_scales: Array) -> Wide:
    """`experts_matmul` with weights of `dequantise_each_fp8`; (R, K), (S,), (X, N, K), (X, N / 128, K / 128) -> (R, N)."""
    return experts_matmul(a, tiles, dequantise_each_fp8(b, b_scales))


def experts_matmul_silu_mul_few_fp8(a: Array, tiles: Array, b: Array, b_scales: Array) -> Wide:
    """`experts_matmul_silu_mul` with such weights, gate's rows before up's; (R, K), (S,), (X, 2 I, K), (X, 2 I / 128, K / 128)
    -> (R, I)."""
    weights = dequantise_each_fp8(b, b_scales)
    return experts_matmul_silu_mul(a, tiles, weights.reshape(len(b), 2, -1, weights.shape[2]))


def experts_matmul_fp8(a: Array, a_scales: Array, tiles: Array, b: Array, b_scales: Array) -> Wide:
    """`experts_matmul` of codes times the scales of their blocks of 128; (R, K), (K / 128, R), (S,), (X, N, K),
    (X, N / 128, K / 128) -> (R, N)."""
    return experts_matmul(_rows_of_codes(a, a_scales), tiles, dequantise_each_fp8(b, b_scales))


def experts_matmul_silu_mul_fp8(a: Array, a_scales: Array, tiles: Array, b: Array, b_scales: Array) -> Wide:
    """`experts_matmul_silu_mul` of such codes; (R, K), (K / 128, R), (S,), (X, 2, I, K), (X, 2, I / 128, K / 128) -> (R, I)."""
    weights = dequantise_each_fp8(b.reshape(-1, *b.shape[2:]), b_scales.reshape(-1, *b_scales.shape[2:])).reshape(b.shape)
    return experts_matmul_silu_mul(_rows_of_codes(a, a_scales), tiles, weights)


def _rows_of_codes(a: Array, a_scales: Array) -> Wide:
    """Codes times the scale of each 128 columns of a row; (R, K), (K / 128, R) -> (R, K)."""
    return a.astype(np.float64) * a_scales.astype(np.float64).T.repeat(128, axis=1)


def experts_matmul_few_int4(a: Array, tiles: Array, b: Array, b_scales: Array, b_zeros: Array) -> Wide:
    """`experts_matmul` with weights of `dequantise_each_int4`; (R, K), (S,), (X, N, K / 8), (X, K / 128, N) twice -> (R, N)."""
    return experts_matmul(a, tiles, dequantise_each_int4(b, b_scales, b_zeros))


def experts_matmul_silu_mul_few_int4(a: Array, tiles: Array, b: Array, b_scales: Array, b_zeros: Array) -> Wide:
    """`experts_matmul_silu_mul` with such weights, gate's rows before up's; (R, K), (S,), (X, 2 I, K / 8), (X, K / 128, 2 I)
    twice -> (R, I)."""
    weights = dequantise_each_int4(b, b_scales, b_zeros)
    return experts_matmul_silu_mul(a, tiles, weights.reshape(len(b), 2, -1, weights.shape[2]))


def experts_matmul_few_int4_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """Words of all values, and zero points of four bits; of gate and up, whose dim is `I2`, or of `N` outputs."""
    experts, rows, columns = int(dims["X"]), int(dims["I2" if "I2" in dims else "N"]), int(dims["K"])
    words = rng.integers(0, 2**32, (experts, rows, columns // 8), dtype=np.uint32)
    return {"b": words, "b_zeros": rng.integers(0, 16, (experts, columns // 128, rows), dtype=np.uint8)}


experts_matmul_silu_mul_few_int4_inputs = experts_matmul_few_int4_inputs
