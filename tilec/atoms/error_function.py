"""The error function of one f32: two polynomials by `fma`, and one `ex2.approx` (PTX ISA, `fma`, `ex2`).

- |x| <= 1: x + x p(x^2), where p is near 2/sqrt(pi) - 1. The small factor keeps the rounding errors of p small, and the last
  `fma` keeps tiny arguments, subnormal ones and the sign of zero.
- above: 1 - 2^q(|x|), with the sign of x, where q is near the logarithm of 1 - erf to base 2. 2^q is at most 0.158, which
  scales its error and that of `ex2`. From 4 on the result rounds to 1: |x| is held there, so that infinity needs no branch.

Both are fits of this project to `math.erf` and `math.erfc`, in the parts that W. J. Cody separates too ("Rational Chebyshev
approximations for the error function", 1969): least squares at 3000 Chebyshev nodes, reweighted by the error until the largest
is smallest (Lawson's algorithm), in f64, then rounded to f32. `NEAR` minimizes the error relative to erf (2^-29.6 before its
coefficients are rounded), `TAIL` the absolute one of the result (2^-29.8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, f32

NEAR: Final = (0x3E0375D4, 0xBEC0939F, 0x3DE7167C, 0xBCDBFC86, 0x3BAA02D8, 0xBA51FB7C, 0x38A4B50F)
"""p, from its constant on, as bits of f32."""
TAIL: Final = (0xBA05C542, 0xBFD01FF4, 0xBF6BB740, 0xBE183820, 0x3D00DA99, 0xBB8AF7D4, 0x398C5DD7)
"""q, likewise."""
ONE: Final = 0x3F800000
FOUR: Final = 0x40800000


def erf(out: Builder, x: SsaValue) -> SsaValue:
    """erf(x) of an f32 within 2 units in the last place, between -1 and 1; NaN of NaN."""
    magnitude = out.float_function("fabs", x)
    near = _fma(out, x, _polynomial(out, NEAR, out.float_op("fmul", x, x)), x)
    (limited,) = out.intrinsic("minimumnum.f32", [magnitude, out.float_constant(FOUR)], [f32])
    exponent = _polynomial(out, TAIL, limited)
    (rest,) = out.inline_ptx("ex2.approx.ftz.f32 $0, $1;", "=f,f", [exponent], [f32])
    far = out.float_op("fsub", out.float_constant(ONE), rest)
    signed = out.select(out.float_compare("olt", x, out.float_constant(0)), out.negated(far), far)
    return out.select(out.float_compare("ogt", magnitude, out.float_constant(ONE)), signed, near)


def _polynomial(out: Builder, coefficients: Sequence[int], x: SsaValue) -> SsaValue:
    """Horner's scheme."""
    *others, last = coefficients
    result = out.float_constant(last)
    for coefficient in reversed(others):
        result = _fma(out, result, x, out.float_constant(coefficient))
    return result


def _fma(out: Builder, a: SsaValue, b: SsaValue, c: SsaValue) -> SsaValue:
    """`a * b + c`, rounded once."""
    (result,) = out.intrinsic("fma.f32", [a, b, c], [f32])
    return result
