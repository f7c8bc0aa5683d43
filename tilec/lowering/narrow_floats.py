"""Conversions between f32 and narrower floats, rounded once to nearest even.

16-bit floats are types of the LLVM dialect. 8-bit floats are stored as i8 and converted by instructions on pairs (PTX ISA,
`cvt`, from sm_89 on), or before that by arithmetic (`bits_of_f8`). Values beyond the largest finite one saturate to it, because
the instruction has no other mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tilec.ir.types import DType
from tilec.lowering import bits_of_f8
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, f16, f32, floating, i8, i16, i32, vector

_FORMATS: Final = {"f8e4m3": "e4m3x2", "f8e5m2": "e5m2x2"}


def widened(out: Builder, value: SsaValue, dtype: DType) -> SsaValue:
    """A float of `dtype` converted to f32; exact."""
    if dtype.bits == 32:
        return value
    if dtype.bits == 16:
        return out.fpext(value, f32)
    if not out.converts_f8:
        return bits_of_f8.widened(out, value, dtype)
    conversion = f"cvt.rn.f16x2.{_FORMATS[dtype.name]} $0, $1;"
    (pair,) = out.inline_ptx(conversion, "=r,h", [out.zext(value, i16)], [i32])
    return out.fpext(out.bitcast(out.trunc(pair, i16), f16), f32)


def widened_all(out: Builder, values: Sequence[SsaValue], dtype: DType) -> list[SsaValue]:
    """As `widened`, of several floats; 8-bit ones two at a time where the target's `cvt` has pairs."""
    if dtype.bits != 8 or not out.converts_f8:
        return [widened(out, value, dtype) for value in values]
    found: list[SsaValue] = []
    for low, high in zip(values[::2], values[1::2], strict=False):
        both = out.bitcast(widened_pair(out, low, high, dtype), vector(2, f16))
        found += [out.fpext(out.extract(both, index), f32) for index in range(2)]
    return found + [widened(out, value, dtype) for value in values[len(found) :]]


def widened_pair(out: Builder, low: SsaValue, high: SsaValue, dtype: DType) -> SsaValue:
    """Two 8-bit floats as two f16 in an i32; exact. For targets whose `cvt` has them."""
    pair = out.bitcast(out.packed([low, high], vector(2, i8)), i16)
    return out.inline_ptx(f"cvt.rn.f16x2.{_FORMATS[dtype.name]} $0, $1;", "=r,h", [pair], [i32])[0]


def narrowed(out: Builder, value: SsaValue, dtype: DType) -> SsaValue:
    """An f32 rounded to `dtype`."""
    if dtype.bits == 32:
        return value
    if dtype.bits == 16:
        return out.fptrunc(value, floating(dtype.name))
    if not out.converts_f8:
        return bits_of_f8.narrowed(out, value, dtype)
    zero = out.float_constant(0)
    conversion = f"cvt.rn.satfinite.{_FORMATS[dtype.name]}.f32 $0, $1, $2;"
    (pair,) = out.inline_ptx(conversion, "=h,f,f", [zero, value], [i16])
    return out.trunc(pair, i8)
