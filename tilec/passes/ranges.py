"""Ranges and divisibility of integer values: the cheap facts, derived for every value by the fixpoint solver.

A fact `low <= v <= high and v % modulus == rest` holds for every element of a tile. `modulus` 0 means that the value is the
constant `rest`. Facts declared by the kernel (`requires`, `values`) are not used, so what is derived here needs no check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Final

from tilec.ir.core import Function, Op, Value
from tilec.ir.expr import Expr
from tilec.ir.ops import (
    Binary,
    BlockId,
    Broadcast,
    Cast,
    Compare,
    Constant,
    DimValue,
    For,
    Iota,
    NumBlocks,
    Permute,
    Reduce,
    Reshape,
    Select,
    Unary,
)
from tilec.ir.types import MAX_DIM, DType, TileType
from tilec.passes.dataflow import Analysis, solve

GRID_LIMITS: Final = (2**31 - 1, 65535, 65535)
"""Largest grid extent per axis that CUDA launches."""


@dataclass(frozen=True, slots=True)
class Range:
    """`low <= v <= high`, and `v == rest` modulo `modulus` (0: exactly `rest`, 1: nothing known)."""

    low: int
    high: int
    modulus: int = 1
    rest: int = 0

    @property
    def constant(self) -> int | None:
        return self.low if self.low == self.high else None


def exactly(value: int) -> Range:
    """The fact of a constant."""
    return Range(value, value, 0, value)


def between(low: int, high: int, modulus: int = 1, rest: int = 0) -> Range:
    """A fact in normal form; an empty range (code that is never reached) widens to its larger bound."""
    if low >= high:
        return exactly(high) if low == high else exactly(max(low, high))
    return Range(low, high, modulus, rest % modulus if modulus else rest)


def of_dtype(dtype: DType) -> Range:
    """Every value of an integer or bool dtype; floats carry no fact (a range of zero width is never read)."""
    return Range(*dtype.integer_range()) if not dtype.is_float else Range(-(2**63), 2**63)


def join(left: Range, right: Range) -> Range:
    """Both ranges; the congruence that both satisfy."""
    modulus = gcd(gcd(left.modulus, right.modulus), abs(left.rest - right.rest))
    return between(min(left.low, right.low), max(left.high, right.high), modulus, left.rest)


def expr_range(expr: Expr, symbols: Mapping[str, Range]) -> Range:
    """Range of a host expression."""
    if expr.op == "const":
        return exactly(expr.value)
    if expr.op == "sym":
        return symbols[expr.name]
    left, right = (expr_range(arg, symbols) for arg in expr.args)
    kind = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod"}.get(expr.op, expr.op)
    return arithmetic(kind, left, right) or Range(0, 1)


def arithmetic(kind: str, a: Range, b: Range) -> Range | None:
    """Range of `a kind b` over the integers; None for kinds it knows nothing about."""
    match kind:
        case "add":
            return between(a.low + b.low, a.high + b.high, gcd(a.modulus, b.modulus), a.rest + b.rest)
        case "sub":
            return between(a.low - b.high, a.high - b.low, gcd(a.modulus, b.modulus), a.rest - b.rest)
        case "mul":
            corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
            modulus = gcd(gcd(a.modulus * b.modulus, a.modulus * b.rest), b.modulus * a.rest)
            return between(min(corners), max(corners), modulus, a.rest * b.rest)
        case "floordiv":
            return _floordiv(a, b)
        case "mod":
            return _mod(a, b)
        case "min":
            return between(min(a.low, b.low), min(a.high, b.high), *_common(a, b))
        case "max":
            return between(max(a.low, b.low), max(a.high, b.high), *_common(a, b))
        case "and" if a.low >= 0 or b.low >= 0:
            return between(0, min(fact.high for fact in (a, b) if fact.low >= 0))
        case "or" | "xor" if a.low >= 0 and b.low >= 0:
            least = max(a.low, b.low) if kind == "or" else 0
            return between(least, (1 << max(a.high, b.high).bit_length()) - 1)
        case "shl" if b.low >= 0 and b.high < 63:
            return between(min(a.low << b.low, a.low << b.high), max(a.high << b.low, a.high << b.high))
        case "shr" if b.low >= 0 and b.high < 63:
            return between(min(a.low >> b.low, a.low >> b.high), max(a.high >> b.low, a.high >> b.high))
        case _:
            return None


def _common(a: Range, b: Range) -> tuple[int, int]:
    return gcd(gcd(a.modulus, b.modulus), abs(a.rest - b.rest)), a.rest


def _floordiv(a: Range, b: Range) -> Range:
    if b.low < 1:
        magnitude = max(abs(a.low), abs(a.high)) + 1
        return Range(-magnitude, magnitude)
    corners = [x // y for x in (a.low, a.high) for y in (b.low, b.high)]
    d = b.constant
    if d and a.modulus and a.modulus % d == 0:
        return between(min(corners), max(corners), a.modulus // d, a.rest // d)
    return between(min(corners), max(corners))


def _mod(a: Range, b: Range) -> Range:
    if b.low < 1:
        return Range(min(b.low, 0), max(b.high, 0))
    d = b.constant
    if a.low >= 0 and a.high < b.low:
        return a
    if d and a.modulus and a.modulus % d == 0:
        return exactly(a.rest % d)
    modulus = gcd(a.modulus, d) if d else 1
    return between(0, b.high - 1, modulus, a.rest)


@dataclass(slots=True)
class RangeAnalysis(Analysis[Range]):
    """Ranges of all integer values of one kernel."""

    function: Function
    symbols: dict[str, Range]

    def parameter(self, value: Value) -> Range:
        return self.symbols.get(self.function.parameter_of(value).name) or self.top(value)

    def top(self, value: Value) -> Range:
        return of_dtype(value.type.dtype)

    def join(self, left: Range, right: Range) -> Range:
        return join(left, right)

    def widen(self, value: Value, before: Range, after: Range) -> Range:
        all_values = self.top(value)
        low = before.low if after.low >= before.low else all_values.low
        high = before.high if after.high <= before.high else all_values.high
        return between(low, high, after.modulus, after.rest)

    def induction(self, op: For, lower: Range, upper: Range, step: Range) -> Range:
        modulus = gcd(lower.modulus, step.modulus, step.rest)
        return between(lower.low, max(lower.low, upper.high - 1), modulus, lower.rest)

    def transfer(self, op: Op, operands: list[Range]) -> list[Range]:
        if not op.results:
            return []
        found = self._result(op, operands)
        tops = [self.top(result) for result in op.results]
        if found is None or len(tops) != 1:
            return tops
        if tops[0].low <= found.low and found.high <= tops[0].high:
            return [found]
        if found.constant is not None:
            size = tops[0].high - tops[0].low + 1
            return [exactly((found.constant - tops[0].low) % size + tops[0].low)]
        # A result that may wrap has its own obligation; until then any value of the type is assumed. Wrapping subtracts a
        # power of two, so divisibility by a power of two survives it.
        modulus = gcd(found.modulus, 1 << op.result.tile.dtype.bits)
        return [between(tops[0].low, tops[0].high, max(1, modulus), found.rest)]

    def _result(self, op: Op, operands: list[Range]) -> Range | None:
        match op:
            case Constant() if isinstance(op.value, int):
                return exactly(int(op.value))
            case Iota():
                return between(0, op.result.tile.shape[0] - 1)
            case BlockId():
                return between(0, max(0, self._grid(op.axis).high - 1))
            case NumBlocks():
                return self._grid(op.axis)
            case DimValue():
                return self.symbols[op.symbol]
            case Broadcast() | Reshape() | Permute():
                return operands[0]
            case Cast() if op.result.tile.dtype.kind == "b":
                return _truth(operands[0]) if not op.operands[0].tile.dtype.is_float else None
            case Cast() if not op.operands[0].tile.dtype.is_float:
                return operands[0]
            case Compare():
                return Range(0, 1)
            case Select():
                return join(operands[1], operands[2])
            case Binary() if op.result.tile.dtype.is_integer:
                return arithmetic(op.kind, *operands)
            case Unary() if op.result.tile.dtype.is_integer:
                return _unary(op, operands[0])
            case Reduce() if op.operands[0].tile.dtype.is_integer or op.kind.startswith("arg"):
                return _reduction(op, operands[0])
            case _:
                return None

    def _grid(self, axis: int) -> Range:
        if axis >= len(self.function.grid):
            return exactly(1)
        extent = expr_range(self.function.grid[axis], self.symbols)
        return between(extent.low, min(extent.high, GRID_LIMITS[axis]), extent.modulus, extent.rest)


def _truth(a: Range) -> Range:
    """Range of `v != 0`."""
    never_zero = a.low > 0 or a.high < 0 or (a.modulus > 1 and a.rest != 0)
    return exactly(1) if never_zero else exactly(0) if a.constant == 0 else Range(0, 1)


def _unary(op: Unary, a: Range) -> Range | None:
    if op.kind == "neg":
        return between(-a.high, -a.low, a.modulus, -a.rest)
    if op.kind == "not":
        ends = sum(op.result.tile.dtype.integer_range())  # -1 of a signed type, the largest number of an unsigned one
        return between(ends - a.high, ends - a.low, a.modulus, ends - a.rest)
    if op.kind == "abs":
        low = 0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high))
        return between(low, max(abs(a.low), abs(a.high)))
    return None


def _reduction(op: Reduce, a: Range) -> Range | None:
    extent = op.operands[0].tile.shape[op.axis]
    if op.kind.startswith("arg"):
        return between(0, extent - 1)
    if op.kind == "sum":
        return between(a.low * extent, a.high * extent)
    return a


def symbol_ranges(function: Function) -> dict[str, Range]:
    """Ranges of dims, strides and integer scalar parameters."""
    ranges = {name: Range(1, MAX_DIM) for name in function.dims}
    ranges.update({name: Range(0, 2**63 - 1) for name in function.strides})
    for parameter in function.parameters:
        if parameter.access is None and isinstance(parameter.value.type, TileType):
            dtype = parameter.value.type.dtype
            if not dtype.is_float:
                ranges[parameter.name] = of_dtype(dtype)
    return ranges


def value_ranges(function: Function) -> dict[Value, Range]:
    """Ranges of every value; for tiles, of every element."""
    return solve(function, RangeAnalysis(function, symbol_ranges(function)))
