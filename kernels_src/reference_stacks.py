"""What the kernels that dequantise stacks of weights compute, in float64 NumPy. Conventions are those of `reference`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
