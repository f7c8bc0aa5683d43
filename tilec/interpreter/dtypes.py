"""Conversions between dtypes as NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.types import DType
from tilec.target.dtypes import numpy_dtype

Array = NDArray[Any]


def convert(array: Array, source: DType, target: DType) -> Array:
    """Converts `array` to `target`. Floats round to nearest even, 8-bit floats saturate to the finite range. Floats convert
    to integers toward zero, clamped to the range (NaN to 0); integers keep their low bits. Arrays are never modified, so an
    array that already has the dtype is returned as is."""
    numpy_target = numpy_dtype(target)
    if target.kind == "b":
        return array != 0
    if source.is_float and target.is_integer:
        return _saturated(array.astype(np.float64), target)
    if target.is_float and target.bits == 8:
        return np.clip(array.astype(np.float32), -target.largest, target.largest).astype(numpy_target)
    if target.is_float and not source.is_float:
        return array.astype(np.float32).astype(numpy_target, copy=False)
    if source.is_float and source.bits == target.bits and source != target:
        return array.astype(np.float32).astype(numpy_target)  # conversions between bf16 and f16 go through f32
    return array.astype(numpy_target, copy=False)


def _saturated(values: Array, target: DType) -> Array:
    """f64 as integers. The bounds of 64 bits are not exact in f64, so values at or beyond them are selected, not converted."""
    low, high = target.integer_range()
    truncated = np.trunc(np.where(np.isnan(values), 0.0, values))
    above, below = truncated >= float(high), truncated <= float(low)
    inside = np.where(above | below, 0.0, truncated).astype(np.uint64 if target.kind == "u" else np.int64)
    numpy_target = numpy_dtype(target)
    found = np.where(above, numpy_target.type(high), inside.astype(numpy_target))
    return np.where(below, numpy_target.type(low), found)
