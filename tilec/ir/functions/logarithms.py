"""log and log2 of f32, and powers.

x = 2^e m with m from sqrt(1/2) to sqrt(2), and f = m - 1, which is exact: ln m = f + f^2 q(f). q minimizes the largest relative
error of ln m (2^-30.4) as in `exponentials.py`. log2 keeps the product with log2(e), and the sum with e, in two floats.

A power is 2^(y log2 |x|), where y log2 |x| has an absolute error below 2^-27: log2 m is u (c1 + u^2 (c3 + u^2 p(u^2))) with
u = (m - 1) / (m + 1), and u, u^2 and every sum up to the coefficient c3 are two floats (Dekker's products by `fma`).
p: 2^-36.8 of log2 m.
"""

from __future__ import annotations

from typing import Final

from tilec.ir.functions.arithmetic import Arithmetic, B, F, I, nearest_integer, polynomial
from tilec.ir.functions.exponentials import LN2_HIGH, LN2_LOW, power_of_two

LOG: Final = (
    -0.5, 0.3333331, -0.25000027, 0.20002225, -0.16667698, 0.14217585, -0.12407086, 0.1190146, -0.116779074, 0.06726201,
)  # fmt: skip
LOG2E_HIGH: Final = 1.442695
LOG2E_LOW: Final = 1.925963e-08
TWICE_HIGH: Final = 2.88539
"""c1 = 2 log2(e)."""
TWICE_LOW: Final = 3.851926e-08
THIRD_HIGH: Final = 0.9617967
"""c3 = 2/3 log2(e)."""
THIRD_LOW: Final = -7.028462e-09
POWER: Final = (0.57708025, 0.41184703, 0.3378852)
ROOT_HALF_BITS: Final = 0x3F3504F3
LEAST_NORMAL: Final = 2.0**-126
INFINITY: Final = float("inf")
NAN: Final = float("nan")


def log(on: Arithmetic[F, I, B], x: F) -> F:
    """NaN of negative numbers, -infinity of 0."""
    e, f, tail = _parts(on, x)
    result = on.fma(e, on.number(LN2_HIGH), on.fma(e, on.number(LN2_LOW), on.add(f, tail)))
    return _at_the_ends(on, x, result)


def log2(on: Arithmetic[F, I, B], x: F) -> F:
    """NaN of negative numbers, -infinity of 0; exact of powers of two."""
    e, f, tail = _parts(on, x)
    high = on.mul(f, on.number(LOG2E_HIGH))
    rest = on.fma(f, on.number(LOG2E_HIGH), on.negated(high))
    low = on.add(rest, on.fma(tail, on.number(LOG2E_HIGH), on.mul(f, on.number(LOG2E_LOW))))
    total, error = _sum(on, e, high)
    return _at_the_ends(on, x, on.add(total, on.add(error, low)))


def power(on: Arithmetic[F, I, B], x: F, y: F) -> F:
    """`x ** y` as C's `pow` (ISO C, F.10.4.4): 1 for y = 0 and for x = 1, of NaN too; of a negative x NaN, unless y is an
    integer, whose parity decides the sign."""
    magnitude = on.absolute(x)
    high, low = _log2_in_two(on, magnitude)
    product = on.mul(y, high)
    rest = on.fma(y, high, on.negated(product))
    limit = on.number(200.0)
    far = on.less(limit, on.absolute(product))
    rest = on.select(far, on.number(0.0), on.fma(y, low, rest))
    limited = on.select(on.less(product, on.number(-152.0)), on.number(-152.0), product)
    limited = on.select(on.less(on.number(130.0), limited), on.number(130.0), limited)
    n, whole = nearest_integer(on, limited, 1.0)
    result = power_of_two(on, on.add(on.sub(limited, n), rest), whole)
    one, zero = on.number(1.0), on.number(0.0)
    result = on.select(on.equal(magnitude, one), on.select(on.equal(y, y), one, y), result)
    result = _signed(on, x, y, result)
    result = on.select(on.equal(x, one), one, result)
    return on.select(on.equal(y, zero), one, result)


def _signed(on: Arithmetic[F, I, B], x: F, y: F, result: F) -> F:
    """The power of |x| as one of x."""
    half = on.mul(y, on.number(0.5))
    integral = on.equal(on.floor(y), y)
    odd = on.select(on.equal(on.floor(half), half), result, on.negated(result))
    of_integer = on.select(integral, odd, result)
    negative = on.same(on.sar(on.bits(x), 31), on.integer(-1))
    result = on.select(negative, of_integer, result)
    finite = on.less(on.absolute(x), on.number(INFINITY))
    undefined = on.select(integral, result, on.number(NAN))
    below = on.select(finite, undefined, result)
    return on.select(on.less(x, on.number(0.0)), below, result)


def _split(on: Arithmetic[F, I, B], x: F) -> tuple[F, F]:
    """e and m of a positive number, as floats."""
    tiny = on.less(x, on.number(LEAST_NORMAL))
    bits = on.bits(on.select(tiny, on.mul(x, on.number(2.0**24)), x))
    e = on.sar(on.minus(bits, on.integer(ROOT_HALF_BITS)), 23)
    m = on.from_bits(on.minus(bits, on.shl(e, 23)))
    return on.sub(on.to_float(e), on.select(tiny, on.number(24.0), on.number(0.0))), m


def _parts(on: Arithmetic[F, I, B], x: F) -> tuple[F, F, F]:
    """e, f and ln m - f."""
    e, m = _split(on, x)
    f = on.sub(m, on.number(1.0))
    return e, f, on.mul(on.mul(f, f), polynomial(on, LOG, f))


def _at_the_ends(on: Arithmetic[F, I, B], x: F, result: F) -> F:
    """A logarithm, also of 0, infinity, negative numbers and NaN."""
    zero = on.number(0.0)
    result = on.select(on.less(x, on.number(INFINITY)), result, x)
    result = on.select(on.less(x, zero), on.number(NAN), result)
    return on.select(on.equal(x, zero), on.number(-INFINITY), result)


def _sum(on: Arithmetic[F, I, B], a: F, b: F) -> tuple[F, F]:
    """A sum and its error, exact if a is 0 or at least b in magnitude (Dekker)."""
    total = on.add(a, b)
    return total, on.sub(b, on.sub(total, a))


def _log2_in_two(on: Arithmetic[F, I, B], x: F) -> tuple[F, F]:
    """log2 of a number that is not negative, in two floats; the second is 0 where the first is infinite or NaN."""
    e, m = _split(on, x)
    one = on.number(1.0)
    above, below = on.sub(m, one), on.add(m, one)
    below_low = on.sub(m, on.sub(below, one))
    inverse = on.div(one, below)
    u = on.mul(above, inverse)
    u_negated = on.negated(u)
    rest = on.fma(u_negated, below_low, on.fma(u_negated, below, above))
    u_low = on.mul(rest, inverse)
    s = on.mul(u, u)
    s_low = on.fma(on.mul(u, on.number(2.0)), u_low, on.fma(u, u, on.negated(s)))
    inner, inner_low = _sum(on, on.number(THIRD_HIGH), on.mul(s, polynomial(on, POWER, s)))
    inner_low = on.add(inner_low, on.number(THIRD_LOW))
    t = on.mul(s, inner)
    t_low = on.fma(s_low, inner, on.fma(s, inner_low, on.fma(s, inner, on.negated(t))))
    w, w_low = _sum(on, on.number(TWICE_HIGH), t)
    w_low = on.add(w_low, on.add(t_low, on.number(TWICE_LOW)))
    high = on.mul(u, w)
    low = on.fma(u_low, w, on.fma(u, w_low, on.fma(u, w, on.negated(high))))
    total, error = _sum(on, e, high)
    total, error = _sum(on, total, on.add(error, low))
    inside = on.less(on.number(0.0), x)
    total = on.select(inside, total, on.number(-INFINITY))
    total = on.select(on.less(x, on.number(INFINITY)), total, x)
    special = on.less(on.absolute(total), on.number(INFINITY))
    return total, on.select(special, error, on.number(0.0))
