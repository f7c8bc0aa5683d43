"""Conversions of 8-bit floats by arithmetic agree with ml_dtypes on every 8-bit float, and on f32 values around every boundary.

A builder that computes with NumPy arrays takes the place of MLIR's.
"""

from __future__ import annotations

from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

from tilec.ir.types import DTYPES
from tilec.lowering import bits_of_f8
from tilec.mlir.types import Type

FORMATS: dict[str, Any] = {"f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}
DTYPE: dict[str, Any] = {"i8": np.uint8, "i16": np.uint16, "i32": np.uint32, "f16": np.float16, "f32": np.float32}
COMPARE: dict[str, Any] = {"eq": np.equal, "ult": np.less, "ugt": np.greater, "uge": np.greater_equal}
FLOAT: dict[str, Any] = {"fmul": np.multiply, "fadd": np.add}


def word(value: Any) -> Any:
    """An integer as an i32."""
    return np.uint32(value) if isinstance(value, int) else value


class Arrays:
    """The methods of a `Builder` that the conversions use, on arrays of unsigned integers and floats."""

    def zext(self, value: Any, type_: Type) -> Any:
        return value.astype(DTYPE[type_.text])

    trunc = fpext = zext

    def bitcast(self, value: Any, type_: Type) -> Any:
        return value.view(DTYPE[type_.text])

    def shl(self, value: Any, by: int) -> Any:
        return value << np.uint32(by)

    def lshr(self, value: Any, by: int) -> Any:
        return value >> np.uint32(by)

    def bit_and(self, left: Any, right: Any) -> Any:
        return left & word(right)

    def bit_or(self, left: Any, right: Any) -> Any:
        return left | word(right)

    def add(self, left: Any, right: Any) -> Any:
        return left + word(right)

    def sub(self, left: Any, right: Any) -> Any:
        return left - word(right)

    def constant(self, value: int, type_: Type) -> Any:
        return DTYPE[type_.text](value)

    def float_constant(self, bits: int) -> Any:
        return np.uint32(bits).view(np.float32)

    def float_op(self, kind: str, left: Any, right: Any) -> Any:
        return FLOAT[kind](left, right)

    def compare(self, kind: str, left: Any, right: Any) -> Any:
        return COMPARE[kind](left, right)

    def select(self, condition: Any, on_true: Any, on_false: Any) -> Any:
        return cast(Any, np.where)(condition, on_true, on_false)


BUILDER = cast(Any, Arrays())


@pytest.mark.parametrize("name", FORMATS)
def test_every_8_bit_float_is_widened_exactly(name: str) -> None:
    bits = np.arange(256, dtype=np.uint8)
    found = cast(Any, bits_of_f8.widened(BUILDER, cast(Any, bits), DTYPES[name]))
    np.testing.assert_array_equal(found, bits.view(FORMATS[name]).astype(np.float32))
    assert (np.signbit(found) == (bits >= 128)).all()


@pytest.mark.parametrize("name", FORMATS)
def test_a_float_is_rounded_once_and_saturated(name: str) -> None:
    high = np.arange(1 << 16, dtype=np.uint32)[:, None] << np.uint32(16)
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    values = (high | low).ravel().view(np.float32)
    with np.errstate(invalid="ignore"):
        found = cast(Any, bits_of_f8.narrowed(BUILDER, cast(Any, values), DTYPES[name]))
        limit = DTYPES[name].largest
        expected = values.clip(-limit, limit).astype(FORMATS[name])
    is_nan = np.isnan(values)
    assert np.isnan(found[is_nan].view(FORMATS[name]).astype(np.float32)).all()
    assert (found[~is_nan] == expected[~is_nan].view(np.uint8)).all()
