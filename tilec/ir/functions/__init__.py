"""Functions of f32 as steps of arithmetic whose results IEEE 754 defines: each has one value, the same everywhere.

Each is within 2 units in the last place of the exact value, for all f32: subnormal ones, infinities, NaN and both zeros
(`docs/language/tiles.md` has the measured errors).
"""

from __future__ import annotations

from tilec.ir.functions.arithmetic import Arithmetic, B, F, I
from tilec.ir.functions.exponentials import exp, exp2, sigmoid, tanh
from tilec.ir.functions.logarithms import log, log2, power
from tilec.ir.functions.trigonometry import cos, sin

__all__ = ["UNARY", "Arithmetic", "cos", "exp", "exp2", "log", "log2", "power", "rsqrt", "sigmoid", "sin", "tanh", "unary"]

UNARY = ("exp", "exp2", "log", "log2", "rsqrt", "sigmoid", "tanh", "sin", "cos")
"""Functions of one number that `unary` computes."""


def rsqrt(on: Arithmetic[F, I, B], x: F) -> F:
    """`1 / sqrt(x)`, both rounded: infinity with the sign of a zero, NaN of negative numbers."""
    return on.div(on.number(1.0), on.sqrt(x))


def unary(on: Arithmetic[F, I, B], kind: str, x: F) -> F:
    """A function by its name."""
    match kind:
        case "exp":
            return exp(on, x)
        case "exp2":
            return exp2(on, x)
        case "log":
            return log(on, x)
        case "log2":
            return log2(on, x)
        case "rsqrt":
            return rsqrt(on, x)
        case "sigmoid":
            return sigmoid(on, x)
        case "tanh":
            return tanh(on, x)
        case "sin":
            return sin(on, x)
        case "cos":
            return cos(on, x)
        case _:
            raise ValueError(kind)
