"""Floats of the tile IR as Python floats: rounding to each dtype, and every float operation, defined for all operands.

A value of any float dtype is the Python float that equals it, which is exact. Arithmetic is done in f32 and rounded once more
for narrower dtypes; rounding the double result of a sum, difference, product, quotient or root to f32 equals rounding the exact
one.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import ml_dtypes
import numpy as np

from tilec.ir.ops import FLOAT_UNARY
from tilec.ir.types import DType

NAN = math.nan
INF = math.inf
LARGEST = {"f8e4m3": 448.0, "f8e5m2": 57344.0}
_F8 = {"f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}


def to_f32(value: float) -> float:
    """The nearest f32, ties to even."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(INF, value)


def to_tf32(value: float) -> float:
    """The nearest number of 11 significant bits, ties away from zero, with the exponents of f32."""
    if not math.isfinite(value) or value == 0:
        return value
    unit = 2.0 ** max(math.frexp(value)[1] - 11, -136)
    return math.copysign(to_f32(math.floor(abs(value) / unit + 0.5) * unit), value)


def _to_bf16(value: float) -> float:
    if value != value or value in (INF, -INF):
        return value
    (bits,) = struct.unpack("I", struct.pack("f", value))
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return struct.unpack("f", struct.pack("I", bits))[0]


def _to_f16(value: float) -> float:
    try:
        return struct.unpack("e", struct.pack("e", value))[0]
    except OverflowError:
        return math.copysign(INF, value)


def rounded(value: float, dtype: DType) -> float:
    """A double rounded to f32 and then to the dtype; f8 dtypes stay finite."""
    value = to_f32(value)
    match dtype.name:
        case "f32":
            return value
        case "f16":
            return _to_f16(value)
        case "bf16":
            return _to_bf16(value)
        case name:
            largest = LARGEST[name]
            clamped = value if value != value else max(-largest, min(largest, value))
            return float(np.float32(clamped).astype(_F8[name]))


_PACKED = {"f32": ("<f", "<I"), "f16": ("<e", "<H")}


def bits_of(value: float, dtype: DType) -> int:
    """The bits of a float of the dtype; of a NaN, those of a quiet one."""
    if dtype.name in _PACKED:
        number, integer = _PACKED[dtype.name]
        return struct.unpack(integer, struct.pack(number, value))[0]
    if dtype.name == "bf16":
        return struct.unpack("<I", struct.pack("<f", value))[0] >> 16
    return int(np.float32(value).astype(_F8[dtype.name]).view(np.uint8))


def from_bits(bits: int, dtype: DType) -> float:
    """The float of the dtype with these bits."""
    if dtype.name in _PACKED:
        number, integer = _PACKED[dtype.name]
        return struct.unpack(number, struct.pack(integer, bits))[0]
    if dtype.name == "bf16":
        return struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    return float(np.uint8(bits).view(_F8[dtype.name]))


def from_int(value: int, dtype: DType) -> float:
    """An integer of any size to the nearest f32, ties to even, then to the dtype."""
    magnitude = abs(value)
    excess = magnitude.bit_length() - 24
    if excess > 0:
        half, remainder, quotient = 1 << (excess - 1), magnitude & ((1 << excess) - 1), magnitude >> excess
        magnitude = (quotient + (remainder > half or (remainder == half and quotient & 1 == 1))) << excess
    return rounded(float(-magnitude if value < 0 else magnitude), dtype)


def to_int(value: float, dtype: DType) -> int:
    """Toward zero, saturating at the ends of the range; NaN gives 0."""
    low, high = dtype.integer_range()
    if value != value:
        return 0
    if value in (INF, -INF):
        return high if value > 0 else low
    return max(low, min(high, int(value)))


def minimum_number(a: float, b: float) -> float:
    """minimumNumber: a NaN loses to a number, -0 < +0."""
    if a != a or b != b:
        return b if a != a else a
    if a == b:
        return a if math.copysign(1, a) < 0 else b
    return a if a < b else b


def maximum_number(a: float, b: float) -> float:
    """maximumNumber: a NaN loses to a number, -0 < +0."""
    return -minimum_number(-a, -b)


def _divide(a: float, b: float) -> float:
    if b != 0 or b != b:
        return a / b
    return NAN if a == 0 or a != a else math.copysign(INF, a) * math.copysign(1, b)


def _power(a: float, b: float) -> float:
    if a != a or b != b:
        return NAN
    try:
        return math.pow(a, b)
    except OverflowError:
        return -INF if a < 0 and b % 2 == 1 else INF
    except ValueError:
        return INF if a == 0 else NAN


BINARY: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _divide,
    "pow": _power,
    "fast_pow": _power,
    "min": minimum_number,
    "max": maximum_number,
}


def _total(function: Callable[[float], float]) -> Callable[[float], float]:
    def total(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return INF
        except ValueError:
            return NAN

    return total


def _logarithm(function: Callable[[float], float]) -> Callable[[float], float]:
    return _total(lambda x: -INF if x == 0 else function(x))


def _integral(function: Callable[[float], int]) -> Callable[[float], float]:
    return lambda x: x if x != x or x in (INF, -INF) or x == 0 else math.copysign(float(function(x)), x)


UNARY: dict[str, Callable[[float], float]] = {
    "neg": lambda x: -x,
    "abs": abs,
    "exp2": _total(lambda x: 2.0**x),
    "exp": _total(math.exp),
    "log2": _logarithm(math.log2),
    "log": _logarithm(math.log),
    "sqrt": _total(math.sqrt),
    "rsqrt": _total(lambda x: _divide(1.0, math.sqrt(x))),
    "tanh": math.tanh,
    "sigmoid": _total(lambda x: x if x != x else 0.0 if x < -700 else 1.0 / (1.0 + math.exp(-x))),
    "sin": _total(math.sin),
    "cos": _total(math.cos),
    "floor": _integral(math.floor),
    "ceil": _integral(math.ceil),
    "round": _integral(round),
    "erf": math.erf,
}
UNARY |= {kind: UNARY[kind.removeprefix("fast_")] for kind in FLOAT_UNARY if kind.startswith("fast_")}
