"""Products of weights of four and eight bits in NumPy and float64. Functions and parameters are named like kernels and
theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Float = NDArray[np.float64]
Integers = NDArray[np.integer]

GROUP = 128
TOLERANCES = {"fp8_matmul": 1.6e-2}
"""Of `tilec test`: sums are rounded to bf16."""


def _wide(array: Array) -> Float:
    return np.asarray(array).astype(np.float64)


def _fields(words: Integers, axis: int) -> NDArray[np.int64]:
    """The eight numbers of four bits of each word, low bits first, along an axis."""
    shifts = np.arange(0, 32, 4)
    bits = words.astype(np.int64)[..., None] >> shifts & 15
    return bits.reshape(words.shape[0], -1) if axis == 1 else bits.transpose(0, 2, 1).reshape(-1, words.shape[1])


def int4_weights(packed: Integers, scales: Array, zeros: Integers) -> Float:
    differences = _fields(packed, 0) - _fields(zeros, 1).repeat(GROUP, axis=0)
    return differences * _wide(scales).repeat(GROUP, axis=0)


def int4_matmul(x: Array, packed: Integers, scales: Array, zeros: Integers) -> Float:
    return _wide(x) @ int4_weights(packed, scales, zeros)


def fp8_matmul(x: Array, weight: Array, x_scales: Array, weight_scales: Array) -> Float:
    rows, columns = len(weight), x.shape[1]
    scales = _wide(weight_scales).repeat(GROUP, axis=0)[:rows].repeat(GROUP, axis=1)[:, :columns]
    return (_wide(x) * _wide(x_scales).repeat(GROUP, axis=1)[:, :columns]) @ (_wide(weight) * scales).T


def int4_matmul_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    inputs, outputs = int(dims["K"]), int(dims["N"])
    words = ((inputs // 8, outputs), (inputs // GROUP, outputs // 8))
    packed, zeros = (rng.integers(-(2**31), 2**31, shape).astype(np.int32) for shape in words)
    scales = (1 + rng.random((inputs // GROUP, outputs))) / 8 * inputs**-0.5
    return {"x": rng.standard_normal((dims["M"], inputs)), "packed": packed, "scales": scales, "zeros": zeros}


def fp8_matmul_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    blocks = -(-int(dims["K"]) // GROUP)
    return {
        "x_scales": 0.5 + rng.random((dims["M"], blocks)),
        "weight_scales": (0.5 + rng.random((-(-int(dims["N"]) // GROUP), blocks))) * int(dims["K"]) ** -0.5,
    }
