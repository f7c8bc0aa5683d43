"""The operations of which functions of f32 consist: IEEE 754 arithmetic, and integers of 32 bits that wrap.

Each has one result, so a function written with them has the same bits wherever they are implemented: NumPy arrays in the
interpreter (`tilec/interpreter/steps.py`), values of LLVM in lowering (`tilec/lowering/functions.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

F = TypeVar("F")
"""f32, or many of them."""
I = TypeVar("I")  # noqa: E741 with F and B, the letters of the kinds of values
"""Integers of 32 bits, without a sign of their own."""
B = TypeVar("B")
"""Truth values."""
SHIFT: Final = 1.5 * 2.0**23
"""Floats of that size are integers: a sum with it is rounded to one, which its lowest bits are."""
SHIFT_BITS: Final = 0x4B400000


class Arithmetic(Protocol[F, I, B]):
    """Floats round to nearest, ties to even; subnormal numbers stay. Nothing is contracted or reordered."""

    def number(self, value: float, /) -> F:
        """The f32 nearest to a number."""
        ...

    def add(self, a: F, b: F, /) -> F: ...
    def sub(self, a: F, b: F, /) -> F: ...
    def mul(self, a: F, b: F, /) -> F: ...
    def div(self, a: F, b: F, /) -> F: ...
    def fma(self, a: F, b: F, c: F, /) -> F:
        """`a * b + c`, rounded once."""
        ...

    def sqrt(self, x: F, /) -> F: ...
    def floor(self, x: F, /) -> F: ...
    def negated(self, x: F, /) -> F: ...
    def absolute(self, x: F, /) -> F: ...
    def less(self, a: F, b: F, /) -> B:
        """False of a NaN."""
        ...

    def equal(self, a: F, b: F, /) -> B:
        """False of a NaN."""
        ...

    def select(self, condition: B, a: F, b: F, /) -> F: ...

    def bits(self, x: F, /) -> I: ...
    def from_bits(self, x: I, /) -> F: ...
    def to_float(self, x: I, /) -> F:
        """A signed integer, rounded."""
        ...

    def integer(self, value: int, /) -> I:
        """A constant from -2^31 to 2^32 - 1."""
        ...

    def plus(self, a: I, b: I, /) -> I: ...
    def minus(self, a: I, b: I, /) -> I: ...
    def times(self, a: I, b: I, /) -> I: ...
    def times_high(self, a: I, b: I, /) -> I:
        """The upper 32 bits of the product of unsigned integers."""
        ...

    def bit_and(self, a: I, b: I, /) -> I: ...
    def bit_or(self, a: I, b: I, /) -> I: ...
    def bit_xor(self, a: I, b: I, /) -> I: ...
    def shl(self, x: I, amount: int, /) -> I: ...
    def shr(self, x: I, amount: int, /) -> I:
        """Filled with zeros."""
        ...

    def sar(self, x: I, amount: int, /) -> I:
        """Filled with the sign."""
        ...

    def shl_by(self, x: I, amount: I, /) -> I:
        """By an amount from 0 on; 0 from 32 on."""
        ...

    def shr_by(self, x: I, amount: I, /) -> I:
        """Filled with zeros, by an amount from 0 on; 0 from 32 on."""
        ...

    def below(self, a: I, b: I, /) -> B:
        """`a < b` of unsigned integers."""
        ...

    def same(self, a: I, b: I, /) -> B: ...

    def select_integer(self, condition: B, a: I, b: I, /) -> I: ...

    def branch(
        self, condition: B, then: Callable[[], tuple[I, F, F]], otherwise: Callable[[], tuple[I, F, F]], /
    ) -> tuple[I, F, F]:
        """The results of one of both, which a chip executes alone where no thread of a warp needs the other."""
        ...


def polynomial(on: Arithmetic[F, I, B], coefficients: tuple[float, ...], x: F) -> F:
    """Horner's scheme; coefficients from the constant on."""
    *others, last = coefficients
    result = on.number(last)
    for coefficient in reversed(others):
        result = on.fma(result, x, on.number(coefficient))
    return result


def with_sign(on: Arithmetic[F, I, B], magnitude: F, of: F) -> F:
    """A number that is not negative, with the sign of another."""
    return on.from_bits(on.bit_or(on.bits(magnitude), on.bit_and(on.bits(of), on.integer(1 << 31))))


def nearest_integer(on: Arithmetic[F, I, B], x: F, factor: float) -> tuple[F, I]:
    """The integer nearest to `x * factor`, as both kinds; the product is at most 2^22."""
    shifted = on.fma(x, on.number(factor), on.number(SHIFT))
    return on.sub(shifted, on.number(SHIFT)), on.minus(on.bits(shifted), on.integer(SHIFT_BITS))
