"""Conversions between f32 and 8-bit floats by arithmetic, for chips whose `cvt` has no such floats (before sm_89).

In: an f32, or an 8-bit float as i8. Out: the other one. Results are those of `cvt.rn.f16x2.e4m3x2`, `cvt.rn.satfinite` and so
on (PTX ISA, `cvt`) for every value: exact, or rounded once to nearest even, saturated at the largest finite value; a NaN gives
a NaN. The formats are e4m3 (no infinities; 0x7f and 0xff are NaN) and e5m2 (infinities and NaNs as in IEEE 754), PTX ISA,
"Alternate Floating-Point Data Formats".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from tilec.ir.types import DType
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, f16, f32, i8, i16, i32
from tilec.target import dtypes

_F32_MANTISSA: Final = dtypes.f32.significand - 1
_F32_BIAS: Final = 127
_NAN: Final = 0x7F
"""The NaN that `cvt` makes, in both formats."""


@dataclass(frozen=True, slots=True)
class _Format:
    """`mantissa`: its bits, those of the significand but the leading one. `bias`: of the exponent."""

    mantissa: int
    bias: int


_FORMATS: Final = {
    dtype.name: _Format(dtype.significand - 1, bias) for dtype, bias in ((dtypes.f8e4m3, 7), (dtypes.f8e5m2, 15))
}


def _bits(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


def widened(out: Builder, value: SsaValue, dtype: DType) -> SsaValue:
    """An 8-bit float as f32; exact. An e5m2 is the upper half of an f16. An e4m3 with its exponent where that of an f32 is has
    the value divided by 2 to the difference of the biases, subnormals included."""
    if dtype.name == "f8e5m2":
        return out.fpext(out.bitcast(out.trunc(out.shl(out.zext(value, i32), 8), i16), f16), f32)
    form = _FORMATS[dtype.name]
    bits = out.zext(value, i32)
    magnitude = out.bit_and(bits, 0x7F)
    small = out.bitcast(out.shl(magnitude, _F32_MANTISSA - form.mantissa), f32)
    scaled = out.float_op("fmul", small, out.float_constant(_bits(2.0 ** (_F32_BIAS - form.bias))))
    is_nan = out.compare("eq", magnitude, out.constant(_NAN, i32))
    found = out.select(is_nan, out.constant(0x7FC00000, i32), out.bitcast(scaled, i32))
    return out.bitcast(out.bit_or(found, out.shl(out.bit_and(bits, 0x80), 24)), f32)


def narrowed(out: Builder, value: SsaValue, dtype: DType) -> SsaValue:
    """An f32 rounded to an 8-bit float.

    A normal result: half of the last kept bit is added to the bits of the f32, less one unless that bit is set, and the rest is
    cut off; a carry moves to the exponent. A subnormal one is a multiple of the least value: a constant whose last bit has that
    value is added, so that the sum rounds there, and its bits less those of the constant are the multiple.
    """
    form = _FORMATS[dtype.name]
    bits = out.bitcast(value, i32)
    magnitude = out.bit_and(bits, 0x7FFFFFFF)
    limit = out.constant(_bits(dtype.largest), i32)
    is_nan = out.compare("ugt", magnitude, out.constant(0x7F800000, i32))
    finite = out.select(out.compare("ult", magnitude, limit), magnitude, limit)  # floats without a sign order as their bits
    dropped = _F32_MANTISSA - form.mantissa
    odd = out.bit_and(out.lshr(finite, dropped), 1)
    rounded = out.lshr(out.add(out.add(finite, odd), (1 << dropped - 1) - 1), dropped)
    normal = out.sub(rounded, _F32_BIAS - form.bias << form.mantissa)
    magic = _bits(2.0 ** (_F32_MANTISSA + 1 - form.bias - form.mantissa))
    sum_ = out.float_op("fadd", out.bitcast(finite, f32), out.float_constant(magic))
    subnormal = out.sub(out.bitcast(sum_, i32), magic)
    is_normal = out.compare("uge", finite, out.constant(_bits(2.0 ** (1 - form.bias)), i32))
    found = out.select(is_normal, normal, subnormal)
    signed = out.bit_or(found, out.lshr(out.bit_and(bits, 0x80000000), 24))
    return out.trunc(out.select(is_nan, out.constant(_NAN, i32), signed), i8)
