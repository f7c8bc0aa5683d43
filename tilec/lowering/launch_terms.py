"""Launch expressions (extents and strides) as i64 in the kernel.

The launch contract evaluates them over unbounded integers. It refuses a launch in which a divisor is zero or a subexpression
does not fit i64 (`tilec.passes.prover.extents`), so the i64 evaluation in the kernel gives the same value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tilec.ir.core import Function
from tilec.ir.expr import Expr
from tilec.ir.types import MAX_DIM, DType, i32, i64
from tilec.lowering.integers import floor_division
from tilec.mlir import types as mlir
from tilec.mlir.builder import DYNAMIC_SHARED, VPRINTF, Builder
from tilec.mlir.types import SsaValue, Type

LARGEST: Final = 2**63 - 1
RESERVED: Final = frozenset({DYNAMIC_SHARED, VPRINTF, "WARP_SZ", "_"})
"""The module's dynamic shared memory; the function that prints; PTX's predefined constant; `_`, which PTX accepts as an
identifier only with a letter after it."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A launch value: the kernel's argument, the dtype that its bits are read as, and its least and largest value."""

    value: SsaValue
    dtype: DType
    low: int
    high: int


def leaves_of(function: Function) -> dict[str, Leaf]:
    """Dims, strides and integer scalars by name."""
    found = {name: Leaf(named(name, mlir.i32), i32, 1, MAX_DIM) for name in function.dims}
    found |= {name: Leaf(named(name, mlir.i64), i64, 0, LARGEST) for name in function.strides}
    for parameter in function.parameters:
        if parameter.access is None and not parameter.value.tile.dtype.is_float:
            dtype = parameter.value.tile.dtype
            argument = named(parameter.name, mlir.integer(dtype.bits))
            found[parameter.name] = Leaf(argument, dtype, *dtype.integer_range())
    return found


def named(name: str, type: Type) -> SsaValue:
    """The argument for a parameter, dim or stride. Names inside the kernel are numbers, so they cannot collide with it."""
    return SsaValue(f"%{symbol(name)}", type)


def symbol(name: str) -> str:
    """A Python identifier as a valid MLIR and PTX symbol. Non-ASCII letters are replaced by their code points. Names that are
    reserved in the module or in PTX, or invalid in PTX, get a character that no Python identifier contains."""
    if name in RESERVED:
        return f"{name}$"
    escaped = "".join(letter if letter.isascii() else f"$u{ord(letter):x}" for letter in name)
    return f"_${escaped}" if escaped.startswith("$") else escaped  # a symbol of MLIR begins with a letter


def launch_term(out: Builder, expr: Expr, leaves: Mapping[str, Leaf]) -> SsaValue:
    """The value as i64. Tensor types contain only integer operations on dims."""
    if expr.op == "const":
        return out.constant(expr.value, mlir.i64)
    if expr.op == "sym":
        leaf = leaves[expr.name]
        if leaf.dtype == i64:
            return leaf.value
        return out.extended(leaf.value, mlir.i64, signed=leaf.dtype.kind == "i")
    left, right = (launch_term(out, arg, leaves) for arg in expr.args)
    if expr.op in ("min", "max"):
        is_less = out.compare("slt", left, right)
        return out.select(is_less, *((left, right) if expr.op == "min" else (right, left)))
    if expr.op in ("//", "%"):
        kind = "floordiv" if expr.op == "//" else "mod"
        low, divisor_low = (bounds(arg, leaves)[0] for arg in expr.args)
        # For nonnegative operands the signed quotient equals the unsigned one.
        return floor_division(out, kind, left, right, low >= 0 and divisor_low >= 0, divisor_low >= 1)
    return {"+": out.add, "-": out.sub, "*": out.mul}[expr.op](left, right)


def bounds(expr: Expr, leaves: Mapping[str, Leaf]) -> tuple[int, int]:
    """Bounds of an expression's value over unbounded integers; a superset of the values it can have."""
    if expr.op == "const":
        return expr.value, expr.value
    if expr.op == "sym":
        return leaves[expr.name].low, leaves[expr.name].high
    (a, b), (c, d) = (bounds(arg, leaves) for arg in expr.args)
    match expr.op:
        case "+":
            return a + c, b + d
        case "-":
            return a - d, b - c
        case "*":
            corners = [x * y for x in (a, b) for y in (c, d)]
            return min(corners), max(corners)
        case "min":
            return min(a, c), min(b, d)
        case "max":
            return max(a, c), max(b, d)
        case "//" if c >= 1:
            corners = [x // y for x in (a, b) for y in (c, d)]
            return min(corners), max(corners)
        case "%" if c >= 1:
            return 0, d - 1
        case _:
            magnitude = max(abs(a), abs(b), abs(c), abs(d))
            return -magnitude, magnitude
