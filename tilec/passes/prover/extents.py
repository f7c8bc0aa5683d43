"""Launch checks under which the kernel's evaluation of extents, strides and the grid is exact.

The launch contract evaluates launch expressions over unbounded integers, the kernel in i64 (`tilec.lowering.launch_terms`).
The two agree if no divisor is zero and every part of an expression fits i64, a scalar of u64 included; what ranges do not prove
of this is checked at launch. Every contract already requires that each extent is 1 to `MAX_DIM` and each tensor is shorter than
2^63 bytes (`tilec.runtime.contract`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tilec.artifact.records import LaunchCheck
from tilec.ir.core import Function
from tilec.ir.expr import Expr, binary, const
from tilec.passes.analysis.ranges import Range, expr_range, symbol_ranges

LEAST: Final = -(2**63)
LARGEST: Final = 2**63 - 1


def extent_checks(function: Function) -> tuple[LaunchCheck, ...]:
    """The checks for each part of an extent, a stride or the grid, inner parts first."""
    symbols = symbol_ranges(function)
    found: dict[Expr, LaunchCheck] = {}
    for parameter in function.parameters:
        if parameter.access is not None:
            type_ = parameter.value.tensor
            for expr in (*type_.dims, *(type_.strides or ())):
                for check in _checks(expr, symbols, parameter.name):
                    found.setdefault(check.condition, check)
    for expr in function.grid:  # persistent blocks compute it
        for check in _checks(expr, symbols, "the grid"):
            found.setdefault(check.condition, check)
    return tuple(found.values())


def _checks(expr: Expr, symbols: dict[str, Range], tensor: str) -> Iterator[LaunchCheck]:
    for arg in expr.args:
        yield from _checks(arg, symbols, tensor)
    if expr.op == "const":
        return
    if expr.op in ("//", "%"):
        divisor = expr_range(expr.args[1], symbols)
        if divisor.low <= 0 <= divisor.high:
            text = f"the divisor in `{expr}` of {tensor} is not zero"
            yield LaunchCheck(binary("!=", expr.args[1], const(0)), text)
    bounds = expr_range(expr, symbols)
    if bounds.low < LEAST:
        yield LaunchCheck(binary(">=", expr, const(LEAST)), f"`{expr}` of {tensor} fits 64 bits")
    if bounds.high > LARGEST:
        text = "fits 64 bits" if expr.args else "is below 2^63"  # a scalar of u64 fits its own 64 bits
        yield LaunchCheck(binary("<=", expr, const(LARGEST)), f"`{expr}` of {tensor} {text}")
