"""exp, exp2, the logistic function and tanh of f32.

exp: x = n ln 2 + r with |r| <= ln 2 / 2, r by two `fma` (Cody and Waite's reduction), e^r = 1 + r + r^2 q(r), times 2^n in two
factors, the second of which rounds once where the result is subnormal. exp2: r = x - n is exact. The polynomials are fits of
this project that minimize the largest relative error of the function, before their coefficients are rounded to f32 (2^-28.3 of
e^r and of 2^r): weighted least squares at 400 Chebyshev nodes, reweighted by the error until the largest is smallest (Lawson's
algorithm).
"""

from __future__ import annotations

from typing import Final

from tilec.ir.functions.arithmetic import Arithmetic, B, F, I, nearest_integer, polynomial, with_sign

LOG2E: Final = 1.4426950408889634
LN2_HIGH: Final = 0.6931472
"""ln 2 in two floats."""
LN2_LOW: Final = -1.9046542e-09
EXP: Final = (0.49999994, 0.1666652, 0.0416684, 0.008368856, 0.0013814309)
EXP2: Final = (0.24022648, 0.05550362, 0.009618526, 0.0013390161, 0.00015321154)
TANH: Final = (-0.33333313, 0.1333248, -0.053840518, 0.021020556, -0.006198726)
"""p of tanh x = x + x^3 p(x^2) for |x| < `TANH_SMALL`; 2^-29.5."""
TANH_SMALL: Final = 0.55
TANH_ONE: Final = 10.0
"""From 9.02 on, tanh rounds to 1."""


def exp(on: Arithmetic[F, I, B], x: F) -> F:
    """e^x: infinite above 88.72, 0 below -103.97."""
    x = _limited(on, x, -105.0, 90.0)
    n, whole = nearest_integer(on, x, LOG2E)
    r = on.fma(n, on.number(-LN2_LOW), on.fma(n, on.number(-LN2_HIGH), x))
    return _scaled(on, on.add(_exp_less_one(on, r), on.number(1.0)), whole)


def exp2(on: Arithmetic[F, I, B], x: F) -> F:
    """2^x: infinite from 128 on, 0 up to -150."""
    x = _limited(on, x, -152.0, 130.0)
    n, whole = nearest_integer(on, x, 1.0)
    return power_of_two(on, on.sub(x, n), whole)


def power_of_two(on: Arithmetic[F, I, B], r: F, whole: I) -> F:
    """2^(whole + r) for |r| <= 0.51, and an integer from -152 to 130."""
    low = on.fma(r, on.number(LN2_LOW), on.mul(on.mul(r, r), polynomial(on, EXP2, r)))
    return _scaled(on, on.add(on.fma(r, on.number(LN2_HIGH), low), on.number(1.0)), whole)


def sigmoid(on: Arithmetic[F, I, B], x: F) -> F:
    """`1 / (1 + e^-x)`. With t = e^-|x| it is 1 / (1 + t), or t / (1 + t) of a negative x; the remainder of 1 + t, which is
    exact, and the quotient's are divided once more."""
    t = exp(on, on.negated(on.absolute(x)))
    one = on.number(1.0)
    whole = on.add(one, t)
    rest = on.sub(t, on.sub(whole, one))
    above = on.select(on.less(x, on.number(0.0)), t, one)
    inverse = on.div(one, whole)
    quotient = on.mul(above, inverse)
    remainder = on.fma(on.negated(quotient), rest, on.fma(on.negated(quotient), whole, above))
    return on.fma(remainder, inverse, quotient)


def tanh(on: Arithmetic[F, I, B], x: F) -> F:
    """From -1 to 1: a polynomial where |x| is small, 1 - 2 / (1 + e^2|x|) above."""
    magnitude = on.absolute(x)
    square = on.mul(x, x)
    small = on.fma(magnitude, on.mul(square, polynomial(on, TANH, square)), magnitude)
    power = exp(on, on.mul(_limited(on, magnitude, 0.0, TANH_ONE), on.number(2.0)))
    one = on.number(1.0)
    large = on.sub(one, on.div(on.number(2.0), on.add(power, one)))
    return with_sign(on, on.select(on.less(magnitude, on.number(TANH_SMALL)), small, large), x)


def _limited(on: Arithmetic[F, I, B], x: F, low: float, high: float) -> F:
    """Between two bounds; a NaN stays."""
    x = on.select(on.less(on.number(high), x), on.number(high), x)
    return on.select(on.less(x, on.number(low)), on.number(low), x)


def _exp_less_one(on: Arithmetic[F, I, B], r: F) -> F:
    return on.fma(on.mul(r, r), polynomial(on, EXP, r), r)


def _scaled(on: Arithmetic[F, I, B], x: F, whole: I) -> F:
    """`x * 2^whole` for an integer from -152 to 130."""
    half = on.sar(whole, 1)
    return on.mul(on.mul(x, _two_to(on, half)), _two_to(on, on.minus(whole, half)))


def _two_to(on: Arithmetic[F, I, B], whole: I) -> F:
    return on.from_bits(on.shl(on.plus(whole, on.integer(127)), 23))
