"""The scalar types of PTX: bits, and the NumPy dtypes in which registers and steps hold them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

RAW: Final[dict[int, Any]] = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64, 128: np.dtype("V16")}
TYPES: Final[dict[str, tuple[int, Any]]] = {
    "pred": (1, np.bool_),
    **{f"{k}{b}": (b, dtype) for k in "bu" for b, dtype in RAW.items() if 1 < b < 128},
    "b128": (128, RAW[128]),
    "s8": (8, np.int8),
    "s16": (16, np.int16),
    "s32": (32, np.int32),
    "s64": (64, np.int64),
    "f16": (16, np.float16),
    "f32": (32, np.float32),
    "f64": (64, np.float64),
    "bf16": (16, np.uint16),
    "f16x2": (32, np.uint32),
    "bf16x2": (32, np.uint32),
}
"""Bits and NumPy dtype of a scalar type in steps; bf16 and the packed types are raw bits."""
