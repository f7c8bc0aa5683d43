"""How errors of operands become errors of results, operation by operation: bounds in f64, element by element.

In: operands, bounds of their errors, and the result. Out: a bound of the difference between the result and that of another
correct implementation, whose operands differ by at most their bounds, or of the exact result. Documented errors of
approximations count, and every rounding counts twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

import numpy as np

from tilec.interpreter.dtypes import Array, numpy_dtype
from tilec.ir import functions
from tilec.ir.ops import Mma, Unary
from tilec.ir.types import DType

UnaryRule = Callable[[Array, Array, Array], Array]
UNIT: Final = 2.0**-24
UNIT_OF_F8: Final = 2.0**-14
"""Tensor cores of compute capability 9.0 keep about 14 bits of sums of 8-bit floats (DeepSeek-AI, "DeepSeek-V3 Technical
Report", arXiv 2412.19437, "Increasing Accumulation Precision")."""
UNIT_OF_TF32: Final = 2.0**-11
"""The largest relative error of rounding to tf32."""


@cache
def _least(dtype: DType) -> float:
    """The largest error of rounding a number that is next to zero; an f32 or bf16 below 2^-126 may be 0."""
    least_positive = np.array([1], f"u{dtype.bytes}").view(numpy_dtype(dtype)).astype(np.float64)
    return max(float(least_positive[0]) / 2, 2.0**-126)


def _rounded(v: Array) -> Array:
    """Twice the error of an accurate function, which is 2 units in the last place."""
    return 2.0**-21 * np.abs(v) + 2.0**-147


def _accurate(propagated: UnaryRule) -> UnaryRule:
    return lambda x, e, v: propagated(x, e, v) + _rounded(v)


def _steep(x: Array, e: Array, scale: float) -> Array:
    return np.expm1(np.minimum(e * scale, 700)) + 2.0**-20 + np.abs(x) * 2.0**-21


UNARY: Final[dict[str, UnaryRule]] = {
    "neg": lambda x, e, v: e,
    "abs": lambda x, e, v: e,
    "exp2": lambda x, e, v: v * np.expm1(np.minimum(e * 0.6931472, 700)),
    "exp": lambda x, e, v: v * np.expm1(np.minimum(e, 700)),
    "log2": lambda x, e, v: np.where(e == 0, 0, np.where(x > 2 * e, 3 * e / x, np.inf)),
    "log": lambda x, e, v: np.where(e == 0, 0, np.where(x > 2 * e, 2 * e / x, np.inf)),
    "sqrt": lambda x, e, v: np.where(e == 0, 0, np.where(x > 2 * e, e / np.sqrt(np.maximum(x, 1e-300)), np.inf)),
    "rsqrt": lambda x, e, v: np.where(e == 0, 0, np.where(x > 2 * e, v * 2 * e / x, np.inf)),
    "tanh": lambda x, e, v: e,
    "sigmoid": lambda x, e, v: e,
    "sin": lambda x, e, v: e,
    "cos": lambda x, e, v: e,
    "erf": lambda x, e, v: 1.13 * e + 2.0**-22 * np.abs(v) + 2.0**-149,
    "floor": lambda x, e, v: np.where(e == 0, 0, np.inf),
    "ceil": lambda x, e, v: np.where(e == 0, 0, np.inf),
    "round": lambda x, e, v: np.where(e == 0, 0, np.rint(x + 1.01 * e) - np.rint(x - 1.01 * e)),
    "fast_exp2": lambda x, e, v: v * _steep(x, e, 0.6931472) + 2.0**-126,
    "fast_exp": lambda x, e, v: v * _steep(x, e, 1.0) + 2.0**-126,
    "fast_log2": lambda x, e, v: np.where(x > 2 * e, 3 * e / x, np.inf) + 2.0**-19 * (1 + np.abs(v)),
    "fast_log": lambda x, e, v: np.where(x > 2 * e, 2 * e / x, np.inf) + 2.0**-19 * (1 + np.abs(v)),
    "fast_sqrt": lambda x, e, v: np.where(x > 2 * e, v * (e / x + 2.0**-22), np.where((x == 0) & (e == 0), 0, np.inf)),
    "fast_rsqrt": lambda x, e, v: np.where(x > 2 * e, v * (2 * e / x + 2.0**-20), np.inf),
    "fast_tanh": lambda x, e, v: e + 2.0**-10,
    "fast_sigmoid": lambda x, e, v: e + 2.0**-18 + 2.0**-126,
    "fast_sin": lambda x, e, v: np.where(np.abs(x) < 3.2, e + 2.0**-19, 2.0),
    "fast_cos": lambda x, e, v: np.where(np.abs(x) < 3.2, e + 2.0**-19, 2.0),
}
"""Bounds of the results' errors, from arguments, bounds of their errors, and results."""
UNARY.update({kind: _accurate(UNARY[kind]) for kind in functions.UNARY})
BINARY: Final[dict[str, Callable[[Array, Array, Array, Array, Array], Array]]] = {
    "add": lambda a, b, ea, eb, v: ea + eb,
    "sub": lambda a, b, ea, eb, v: ea + eb,
    "mul": lambda a, b, ea, eb, v: np.abs(a) * eb + np.abs(b) * ea + ea * eb,
    "div": lambda a, b, ea, eb, v: np.where(np.abs(b) > 2 * eb, 2 * (ea + np.abs(v) * eb) / np.abs(b), np.inf),
    "min": lambda a, b, ea, eb, v: np.maximum(ea, eb),
    "max": lambda a, b, ea, eb, v: np.maximum(ea, eb),
    "pow": lambda a, b, ea, eb, v: _power(a, b, ea, eb, v, 0.0) + _rounded(v),
    "fast_pow": lambda a, b, ea, eb, v: _power(a, b, ea, eb, v, 2.0**-19) + 2.0**-126,
}


def _power(a: Array, b: Array, ea: Array, eb: Array, v: Array, logarithm: float) -> Array:
    """Of `v = a ** b`: `logarithm` is the error of log2, of 1 plus its magnitude."""
    size = np.abs(np.log(a))
    exponent = (np.abs(b) + eb) * (2 * ea / a + logarithm * (1 + 2 * size)) + size * eb
    steep = np.expm1(np.minimum(exponent, 700)) + (2.0**-20 if logarithm else 0.0)
    return np.where((ea == 0) & (eb == 0) & (logarithm == 0), 0, np.where(a > 2 * ea, v * steep, np.inf))


def unary(op: Unary, x: Array, e: Array, v: Array) -> tuple[bool, Array]:
    """Whether the operation rounds nothing, and the bound of its result before it is rounded."""
    bound = UNARY[op.kind](x, e, v)
    if op.kind in ("fast_exp", "fast_exp2"):
        bound = np.where(np.isneginf(x) & (e == 0), 0.0, bound)
    return op.kind in ("neg", "abs", "floor", "ceil", "round"), bound


def product(op: Mma, a: Array, b: Array, c: Array, ea: Array, eb: Array, ec: Array) -> Array:
    """The bound of `a @ b + c` in floats, summed in any order, before the result is rounded."""
    a, b, dtype = np.abs(a), np.abs(b), op.operands[0].tile.dtype
    if dtype.bits == 32:
        ea, eb = (e + 2 * UNIT_OF_TF32 * (x + e) + _least(dtype) for x, e in ((a, ea), (b, eb)))
    unit = UNIT_OF_F8 if dtype.bits == 8 else UNIT
    inner = a.shape[-1] + 2
    return (a + ea) @ eb + ea @ b + ec + 4 * inner * unit * (a @ b + np.abs(c))


def infinite(v: Array, operands: list[Array], bounds: list[Array]) -> Array:
    """Where a sum is infinite whatever its finite operand is: an operand is, without an error, and the other's is bounded."""
    certain = [np.isinf(operand) & (bound == 0) for operand, bound in zip(operands, bounds, strict=True)]
    return np.isinf(v) & (certain[0] | certain[1]) & np.isfinite(bounds[0]) & np.isfinite(bounds[1])


def widened(v: Array, bound: Array, dtype: DType, exact: bool) -> Array:
    """The bound after rounding to the dtype; infinite where the value may overflow."""
    if not exact:
        step = 2.0**-dtype.significand
        bound = bound + 2 * step * (np.abs(v) + bound) * (1 + UNIT) + _least(dtype)
    return np.where(np.isfinite(v) & (np.abs(v) + bound < dtype.largest), bound, np.where(exact & (bound == 0), 0.0, np.inf))
