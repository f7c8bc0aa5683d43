"""The arithmetic of `tilec.ir.functions` as operations of LLVM, for one element of a thread.

No product and sum may contract here: PTX has `.rn` for each, which ptxas keeps apart (PTX ISA, `mul`, `add`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from tilec.ir import functions
from tilec.lowering.integers import multiply_high, shift
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, f32, i32

Parts = tuple[SsaValue, SsaValue, SsaValue]


ACCURATE: Final = functions.UNARY
"""Kinds that `accurate` computes."""


def accurate(out: Builder, value: SsaValue, *, kind: str) -> SsaValue:
    """One of the functions of `tilec.ir.functions` of an f32."""
    return functions.unary(LoweredArithmetic(out), kind, value)


def power(out: Builder, base: SsaValue, exponent: SsaValue) -> SsaValue:
    """`base ** exponent` of f32."""
    return functions.power(LoweredArithmetic(out), base, exponent)


class LoweredArithmetic:
    """f32 and i32 values. Implements `tilec.ir.functions.Arithmetic`."""

    def __init__(self, out: Builder) -> None:
        self.out = out

    def number(self, value: float) -> SsaValue:
        return self.out.float_constant(struct.unpack("<I", struct.pack("<f", value))[0])

    def integer(self, value: int) -> SsaValue:
        return self.out.constant(value - (1 << 32) if value >= 1 << 31 else value)

    def add(self, a: SsaValue, b: SsaValue) -> SsaValue:
        return self.out.float_op("fadd", a, b)

    def sub(self, a: SsaValue, b: SsaValue) -> SsaValue:
        return self.out.float_op("fsub", a, b)

    def mul(self, a: SsaValue, b: SsaValue) -> SsaValue:
        return self.out.float_op("fmul", a, b)

    def div(self, a: SsaValue, b: SsaValue) -> SsaValue:
        return self.out.float_op("fdiv", a, b)

    def fma(self, a: SsaValue, b: SsaValue, c: SsaValue) -> SsaValue:
        (result,) = self.out.intrinsic("fma.f32", [a, b, c], [f32])
        return result

    def sqrt(self, x: SsaValue) -> SsaValue:
        return self.out.float_function("sqrt", x)

    def floor(self, x: SsaValue) -> SsaValue:
        return self.out.float_function("floor", x)

    def negated(self, x: SsaValue) -> SsaValue:
        return self.out.negated(x)

    def absolute(self, x: SsaValue) -> SsaValue:
        return self.out.float_function("fabs", x)

    def less(self, a: SsaValue, b: SsaValue) -> SsaValue:
        return self.out.float_compare("olt", a, b)

    def equal(self, a: SsaValue, b: SsaValue) -> SsaValue:
        return self.out.float_compare("oeq", a, b)

    def select(self, condition: SsaValue, a: SsaValue, b: SsaValue) -> SsaValue:
        return self.out.select(condition, a, b)

    def bits(self, x: SsaValue) -> SsaValue:
        return self.out.bitcast(x, i32)

    def from_bits(self, x: SsaValue) -> SsaValue:
        return self.out.bitcast(x, f32)

    def to_float(self, x: SsaValue) -> SsaValue:
        return self.out.integer_to_float(x, f32, signed=True)

    def plus(self, a: SsaValue, b: SsaValue) -> SsaValue:
        return self.out.add(a, b)

    def minus(self, a: SsaValue, b: SsaValue) -> SsaValue:
        return self.out.sub(a, b)

    def times(self, a: SsaValue, b: SsaValue) -> SsaValue:
        return self.out.mul(a, b)

    def times_high(self, a: SsaValue, b: SsaValue) -> SsaValue:
        return multiply_high(self.out, a, b, unsigned=True)

    def bit_and(self, a: SsaValue, b: SsaValue) -> SsaValue:
        return self.out.bit_and(a, b)

    def bit_or(self, a: SsaValue, b: SsaValue) -> SsaValue:
        return self.out.bit_or(a, b)

    def bit_xor(self, a: SsaValue, b: SsaValue) -> SsaValue:
        return self.out.bit_xor(a, b)

    def shl(self, x: SsaValue, amount: int) -> SsaValue:
        return self.out.shl(x, amount)

    def shr(self, x: SsaValue, amount: int) -> SsaValue:
        return self.out.lshr(x, amount)

    def sar(self, x: SsaValue, amount: int) -> SsaValue:
        return self.out.integer("ashr", x, amount)

    def shl_by(self, x: SsaValue, amount: SsaValue) -> SsaValue:
        return shift(self.out, "shl", x, amount, unsigned=True, safe=False)

    def shr_by(self, x: SsaValue, amount: SsaValue) -> SsaValue:
        return shift(self.out, "shr", x, amount, unsigned=True, safe=False)

    def below(self, a: SsaValue, b: SsaValue) -> SsaValue:
        return self.out.compare("ult", a, b)

    def same(self, a: SsaValue, b: SsaValue) -> SsaValue:
        return self.out.compare("eq", a, b)

    def select_integer(self, condition: SsaValue, a: SsaValue, b: SsaValue) -> SsaValue:
        return self.out.select(condition, a, b)

    def branch(self, condition: SsaValue, then: Callable[[], Parts], otherwise: Callable[[], Parts]) -> Parts:
        one, two, three = self.out.choose_all(condition, lambda: [*then()], lambda: [*otherwise()])
        return one, two, three
