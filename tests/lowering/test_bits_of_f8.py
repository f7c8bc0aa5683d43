"""Conversions of 8-bit floats by arithmetic agree with ml_dtypes on every 8-bit float, and on f32 values around every boundary.

A builder that computes with NumPy arrays takes the place of the one that writes MLIR.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

from tilec.ir.types import DTYPES
from tilec.lowering import bits_of_f8

FORMATS = {"f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}
DTYPE = {"i8": np.uint8, "i16": np.uint16, "i32": np.uint32, "f16": np.float16, "f32": np.float32}
COMPARE = {"eq": np.equal, "ult": np.less, "ugt": np.greater, "uge": np.greater_equal}
FLOAT = {"fmul": np.multiply, "fadd": np.add}


def builder() -> Any:
    """The methods of a `Builder` that the conversions use, on arrays of unsigned integers and floats."""

    def word(value: Any) -> Any:
        return np.uint32(value) if isinstance(value, int) else value

    def to(value: Any, type_: Any) -> Any:
        return value.astype(DTYPE[type_.text])

    return SimpleNamespace(
        zext=to, trunc=to, fpext=to,
        bitcast=lambda value, type_: value.view(DTYPE[type_.text]),
        shl=lambda value, by: value << np.uint32(by), lshr=lambda value, by: value >> np.uint32(by),
        bit_and=lambda left, right: left & word(right), bit_or=lambda left, right: left | word(right),
        add=lambda left, right: left + word(right), sub=lambda left, right: left - word(right),
        constant=lambda value, type_: DTYPE[type_.text](value),
        float_constant=lambda bits: np.uint32(bits).view(np.float32),
        float_op=lambda kind, left, right: FLOAT[kind](left, right),
        compare=lambda kind, left, right: COMPARE[kind](left, right),
        select=np.where,
    )  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_every_8_bit_float_is_widened_exactly(name: str) -> None:
    bits = np.arange(256, dtype=np.uint8)
    found = bits_of_f8.widened(builder(), cast(Any, bits), DTYPES[name])
    np.testing.assert_array_equal(found, bits.view(FORMATS[name]).astype(np.float32))
    assert (np.signbit(found) == (bits >= 128)).all()


@pytest.mark.parametrize("name", FORMATS)
def test_a_float_is_rounded_once_and_saturated(name: str) -> None:
    high = np.arange(1 << 16, dtype=np.uint32)[:, None] << np.uint32(16)
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    values = (high | low).ravel().view(np.float32)
    with np.errstate(invalid="ignore"):
        found = cast(Any, bits_of_f8.narrowed(builder(), cast(Any, values), DTYPES[name]))
        limit = float(ml_dtypes.finfo(FORMATS[name]).max)
        expected = values.clip(-limit, limit).astype(FORMATS[name])
    is_nan = np.isnan(values)
    assert np.isnan(found[is_nan].view(FORMATS[name]).astype(np.float32)).all()
    assert (found[~is_nan] == expected[~is_nan].view(np.uint8)).all()
