"""The NumPy type of each dtype of the tile IR; ml_dtypes has those that NumPy lacks."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tilec.ir.types import DType

Array = NDArray[Any]

_TYPES: Final[dict[str, np.dtype[Any]]] = {
    "f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "f8e5m2": np.dtype(ml_dtypes.float8_e5m2), "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16), "i32": np.dtype(np.int32), "i64": np.dtype(np.int64), "u8": np.dtype(np.uint8),
    "u16": np.dtype(np.uint16), "u32": np.dtype(np.uint32), "bool": np.dtype(np.bool_),
}  # fmt: skip


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    return _TYPES[dtype.name]


def convert(array: Array, source: DType, target: DType) -> Array:
    """Converts `array` to `target`. Floats round to nearest even, 8-bit floats saturate to the finite range. Floats convert
    to integers toward zero, clamped to the range (NaN to 0); integers keep their low bits. Arrays are never modified, so an
    array that already has the dtype is returned as is."""
    numpy_target = numpy_dtype(target)
    if target.kind == "b":
        return array != 0
    if source.is_float and target.is_integer:
        low, high = target.integer_range()
        truncated = np.trunc(array.astype(np.float64))
        truncated = np.where(np.isnan(truncated), 0.0, truncated)
        # The bounds of i64 are not exact in float64, so values out of range are selected before the conversion.
        inside = np.clip(truncated, float(low), np.nextafter(float(high), 0) if target.bits > 32 else float(high))
        return np.where(truncated >= float(high), high, np.where(truncated <= float(low), low, inside.astype(np.int64))).astype(
            numpy_target
        )
    if target.is_float and target.bits == 8:
        largest = {"f8e4m3": 448.0, "f8e5m2": 57344.0}[target.name]
        return np.clip(array.astype(np.float32), -largest, largest).astype(numpy_target)
    if target.is_float and not source.is_float:
        return array.astype(np.float32).astype(numpy_target, copy=False)
    if source.is_float and source.bits == target.bits and source != target:
        return array.astype(np.float32).astype(numpy_target)  # conversions between bf16 and f16 go through f32
    return array.astype(numpy_target, copy=False)
