"""Floats narrower than f32 on their way to f32 and back, one element at a time, rounded once to nearest even.

16-bit floats are types of the LLVM dialect. 8-bit floats are carried as i8 and converted by instructions on pairs (PTX ISA,
`cvt`, from sm_89 on); values beyond the largest finite one become that, as the instruction has no other mode.
"""

from __future__ import annotations

from typing import Final

from tilec.ir.types import DType
from tilec.lowering.tensor_core import Writer

_FORMATS: Final = {"f8e4m3": "e4m3x2", "f8e5m2": "e5m2x2"}


def widened(out: Writer, name: str, dtype: DType) -> str:
    """A float of `dtype` as f32; exact."""
    if dtype.bits == 32:
        return name
    if dtype.bits == 16:
        return out.value(f"llvm.fpext {name} : {dtype} to f32")
    pair = out.value(f"llvm.zext {name} : i8 to i16")
    pair = out.value(f'llvm.inline_asm "cvt.rn.f16x2.{_FORMATS[dtype.name]} $0, $1;", "=r,h" {pair} : (i16) -> i32')
    half = out.value(f"llvm.trunc {pair} : i32 to i16")
    half = out.value(f"llvm.bitcast {half} : i16 to f16")
    return out.value(f"llvm.fpext {half} : f16 to f32")


def narrowed(out: Writer, name: str, dtype: DType) -> str:
    """An f32 rounded to `dtype`."""
    if dtype.bits == 32:
        return name
    if dtype.bits == 16:
        return out.value(f"llvm.fptrunc {name} : f32 to {dtype}")
    zero = out.value("llvm.mlir.constant(0x00000000 : f32) : f32")
    conversion = f"cvt.rn.satfinite.{_FORMATS[dtype.name]}.f32 $0, $1, $2;"
    pair = out.value(f'llvm.inline_asm "{conversion}", "=h,f,f" {zero}, {name} : (f32, f32) -> i16')
    return out.value(f"llvm.trunc {pair} : i16 to i8")
