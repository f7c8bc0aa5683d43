"""The arithmetic of `tilec.ir.functions` on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from tilec.interpreter.dtypes import Array

Parts = tuple[Array, Array, Array]
_TIE: Final = np.uint64(1 << 28)
_BELOW_F32: Final = np.uint64((1 << 29) - 1)
"""The bits of an f64 that an f32 has no room for; a tie if only the first of them is set."""


def fused(a: Array, b: Array, c: Array) -> Array:
    """`a * b + c` of f32, rounded once. The product is exact in f64. The sum's rounding there matters where it makes a tie, or
    where the result is subnormal: these sums are rounded to odd instead (Boldo and Melquiond, 2008)."""
    product, wide = np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64)
    total = product + wide
    if (((total.view(np.uint64) & _BELOW_F32) == _TIE) | (np.abs(total) < 2.0**-126)).any():
        other = total - product
        error = (product - (total - other)) + (wide - other)
        bits = total.view(np.int64)
        inexact = np.isfinite(total) & (error != 0) & ((bits & 1) == 0)
        toward = np.where((error > 0) == (total > 0), 1, -1)
        total = np.where(inexact, bits + toward, bits).view(np.float64)
    return total.astype(np.float32)


class ArrayArithmetic:
    """f32 and u32 arrays of one shape. Implements `tilec.ir.functions.Arithmetic`."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def number(self, value: float) -> Array:
        return np.full(self.shape, value, np.float32)

    def integer(self, value: int) -> Array:
        return np.full(self.shape, value & 0xFFFFFFFF, np.uint32)

    def add(self, a: Array, b: Array) -> Array:
        return a + b

    def sub(self, a: Array, b: Array) -> Array:
        return a - b

    def mul(self, a: Array, b: Array) -> Array:
        return a * b

    def div(self, a: Array, b: Array) -> Array:
        return a / b

    def fma(self, a: Array, b: Array, c: Array) -> Array:
        return fused(a, b, c)

    def sqrt(self, x: Array) -> Array:
        return np.sqrt(x)

    def floor(self, x: Array) -> Array:
        return np.floor(x)

    def negated(self, x: Array) -> Array:
        return -x

    def absolute(self, x: Array) -> Array:
        return np.abs(x)

    def less(self, a: Array, b: Array) -> Array:
        return a < b

    def equal(self, a: Array, b: Array) -> Array:
        return a == b

    def select(self, condition: Array, a: Array, b: Array) -> Array:
        return np.where(condition, a, b)

    def bits(self, x: Array) -> Array:
        return x.view(np.uint32)

    def from_bits(self, x: Array) -> Array:
        return x.view(np.float32)

    def to_float(self, x: Array) -> Array:
        return x.view(np.int32).astype(np.float32)

    def plus(self, a: Array, b: Array) -> Array:
        return a + b

    def minus(self, a: Array, b: Array) -> Array:
        return a - b

    def times(self, a: Array, b: Array) -> Array:
        return a * b

    def times_high(self, a: Array, b: Array) -> Array:
        return (np.multiply(a, b, dtype=np.uint64) >> np.uint64(32)).astype(np.uint32)

    def bit_and(self, a: Array, b: Array) -> Array:
        return a & b

    def bit_or(self, a: Array, b: Array) -> Array:
        return a | b

    def bit_xor(self, a: Array, b: Array) -> Array:
        return a ^ b

    def shl(self, x: Array, amount: int) -> Array:
        return x << np.uint32(amount)

    def shr(self, x: Array, amount: int) -> Array:
        return x >> np.uint32(amount)

    def sar(self, x: Array, amount: int) -> Array:
        return (x.view(np.int32) >> np.int32(amount)).view(np.uint32)

    def shl_by(self, x: Array, amount: Array) -> Array:
        return np.where(amount < 32, x << (amount & np.uint32(31)), np.uint32(0))

    def shr_by(self, x: Array, amount: Array) -> Array:
        return np.where(amount < 32, x >> (amount & np.uint32(31)), np.uint32(0))

    def below(self, a: Array, b: Array) -> Array:
        return a < b

    def same(self, a: Array, b: Array) -> Array:
        return a == b

    def select_integer(self, condition: Array, a: Array, b: Array) -> Array:
        return np.where(condition, a, b)

    def branch(self, condition: Array, then: Callable[[], Parts], otherwise: Callable[[], Parts]) -> Parts:
        if condition.all():
            return then()
        found, others = then(), otherwise()
        one, two, three = (np.where(condition, a, b) for a, b in zip(found, others, strict=True))
        return one, two, three
