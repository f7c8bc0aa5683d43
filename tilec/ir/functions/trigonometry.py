"""sin and cos of f32, in radians.

x = j pi/2 + r with |r| <= pi/4 and a little, and r in two floats. Up to `FAR` by parts of pi/2 (Cody and Waite's reduction):
x less j times the first part is exact, and so are the next product and difference, each in two floats. From there on by
integers (Payne and Hanek's reduction): the significand of x times those 96 bits of 2/pi that decide the product modulo 4, in
units of 2^-62; its upper two bits are j modulo 4.

sin r = r + r^3 p(r^2), cos r = 1 - r^2 / 2 + r^4 q(r^2). p and q minimize the largest relative error (2^-37, 2^-33) as in
`exponentials.py`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from tilec.ir.functions.arithmetic import Arithmetic, B, F, I, nearest_integer, polynomial

FAR: Final = 2.0**16
QUARTER: Final = (1.5707964, -4.371139e-08, -1.7151245e-15)
"""pi/2 in three floats."""
TWO_OVER_PI: Final = 0.63661975
WORDS: Final = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041)
"""2/pi in units of 2^-32, 2^-64, ..., after a word of zeros."""
SIN: Final = (-0.16666667, 0.008333329, -0.00019839233, 2.7173676e-06)
COS: Final = (0.041666646, -0.0013887251, 2.442568e-05)
LINEAR: Final = 2.0**-12
"""Below it, sin x rounds to x or its neighbor."""
INFINITY: Final = float("inf")


def sin(on: Arithmetic[F, I, B], x: F) -> F:
    """From -1 to 1; NaN of infinities; the sign of zero stays."""
    return on.select(on.less(on.absolute(x), on.number(LINEAR)), x, _turned(on, x, 0))


def cos(on: Arithmetic[F, I, B], x: F) -> F:
    """From -1 to 1; NaN of infinities."""
    return _turned(on, x, 1)


def _turned(on: Arithmetic[F, I, B], x: F, quarters: int) -> F:
    """sin(x + quarters * pi/2)."""
    near = on.less(on.absolute(x), on.number(FAR))
    j, r, low = on.branch(near, lambda: _near(on, x), lambda: _far(on, x))
    j = on.plus(j, on.integer(quarters))
    square = on.mul(r, r)
    sine = on.add(r, on.fma(on.mul(square, r), polynomial(on, SIN, square), low))
    half = on.number(-0.5)
    cosine = on.fma(on.mul(square, square), polynomial(on, COS, square), on.mul(low, on.negated(r)))
    cosine = on.add(on.fma(square, half, cosine), on.number(1.0))
    even = on.same(on.bit_and(j, on.integer(1)), on.integer(0))
    result = on.select(even, sine, cosine)
    return on.from_bits(on.bit_xor(on.bits(result), on.shl(on.bit_and(j, on.integer(2)), 30)))


def _near(on: Arithmetic[F, I, B], x: F) -> tuple[I, F, F]:
    first, second, third = QUARTER
    turns, j = nearest_integer(on, x, TWO_OVER_PI)
    exact = on.fma(turns, on.number(-first), x)
    small = on.mul(turns, on.number(second))
    r = on.sub(exact, small)
    back = on.sub(exact, r)
    rounded = on.add(on.sub(exact, on.add(r, back)), on.sub(back, small))  # what r lacks of the difference (Knuth)
    product = on.fma(turns, on.number(-second), small)
    return j, r, on.fma(turns, on.number(-third), on.add(rounded, product))


def _far(on: Arithmetic[F, I, B], x: F) -> tuple[I, F, F]:
    bits = on.bits(x)
    significand = on.bit_or(on.shl(bits, 8), on.integer(1 << 31))
    # x = significand * 2^(first - 30): bits of 2/pi before the window give multiples of 4, and those after it less than 2^-62.
    first_bit = on.minus(on.bit_and(on.shr(bits, 23), on.integer(255)), on.integer(128))
    high, middle, low = _of_two_over_pi(on, first_bit)
    product = on.times(significand, middle)
    lower = on.plus(product, on.times_high(significand, low))
    carry = on.select_integer(on.below(lower, product), on.integer(1), on.integer(0))
    upper = on.plus(on.plus(on.times(significand, high), on.times_high(significand, middle)), carry)
    j = on.shr(on.plus(upper, on.integer(1 << 29)), 30)
    # The rest, a quarter turn in units of 2^-64, as a magnitude and a sign.
    upper, lower = on.bit_or(on.shl(upper, 2), on.shr(lower, 30)), on.shl(lower, 2)
    negative = on.sar(upper, 31)
    lower = on.bit_xor(lower, negative)
    upper = on.bit_xor(upper, negative)
    r, rest = _in_two_floats(on, upper, lower)
    first, second, _ = QUARTER
    angle = on.mul(r, on.number(first))
    error = on.fma(r, on.number(first), on.negated(angle))
    error = on.fma(rest, on.number(first), on.fma(r, on.number(second), error))
    negative = on.bit_and(on.bit_xor(negative, bits), on.integer(1 << 31))
    j = on.select_integer(on.same(on.sar(bits, 31), on.integer(-1)), on.minus(on.integer(0), j), j)
    infinite = on.sub(x, x)  # 0, or NaN of an infinity and of a NaN
    angle, error = (on.from_bits(on.bit_xor(on.bits(part), negative)) for part in (angle, error))
    return j, on.add(angle, infinite), error


def _of_two_over_pi(on: Arithmetic[F, I, B], first_bit: I) -> tuple[I, I, I]:
    """The 96 bits of 2/pi of which the first has the weight 2^(31 - first_bit), for 15 to 126."""
    first, amount = on.shr(first_bit, 5), on.bit_and(first_bit, on.integer(31))
    words: list[I] = []
    for position in range(4):
        word = on.integer(WORDS[position])
        for index in range(1, 4):
            word = on.select_integer(on.same(first, on.integer(index)), on.integer(WORDS[position + index]), word)
        words.append(word)
    others = on.minus(on.integer(32), amount)
    high, middle, low = (on.bit_or(on.shl_by(word, amount), on.shr_by(after, others)) for word, after in pairwise(words))
    return high, middle, low


def _in_two_floats(on: Arithmetic[F, I, B], upper: I, lower: I) -> tuple[F, F]:
    """`upper * 2^-32 + lower * 2^-64`, from parts of at most 24 bits, which are exact."""
    middle = on.bit_or(on.shl(on.bit_and(upper, on.integer(255)), 16), on.shr(lower, 16))
    first = on.mul(on.to_float(on.shr(upper, 8)), on.number(2.0**-24))
    last = on.mul(on.to_float(on.bit_and(lower, on.integer(0xFFFF))), on.number(2.0**-64))
    tail = on.fma(on.to_float(middle), on.number(2.0**-48), last)
    total = on.add(first, tail)
    return total, on.sub(tail, on.sub(total, first))
