"""Ranges and divisibility of integer values: the cheap facts, derived for every value by the fixpoint solver.

A fact `low <= v <= high and v % modulus == rest` holds for every element of a tile. `modulus` 0 means that the value is the
constant `rest`. Facts declared by the kernel (`requires`, `values`) are not used, so what is derived here needs no check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import Final

from tilec.ir.core import Function, Op, Value
from tilec.ir.expr import Expr
from tilec.ir.ops import Binary, BlockId, Cast, Constant, DimValue, For, NumBlocks, Select, Unary
from tilec.ir.range_facts import Range, arithmetic, between, exactly, join, of_dtype, unary, within
from tilec.ir.types import MAX_DIM, TileType, f32
from tilec.passes.analysis.dataflow import Analysis, solve
from tilec.passes.analysis.selected_ranges import selected

GRID_LIMITS: Final = (2**31 - 1, 65535, 65535)
"""Largest grid extent per axis that CUDA launches."""
LANDMARKS: Final = 4  # times that a value is widened to a landmark


def expr_range(expr: Expr, symbols: Mapping[str, Range]) -> Range:
    """Range of a host expression."""
    if expr.op == "const":
        return exactly(expr.value)
    if expr.op == "sym":
        return symbols[expr.name]
    left, right = (expr_range(arg, symbols) for arg in expr.args)
    kind = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod", "min": "min", "max": "max"}.get(expr.op)
    found = arithmetic(kind, left, right) if kind is not None else None
    return found or Range(0, 1)  # comparisons, and `and`, `or` of truth values


@dataclass(slots=True)
class RangeAnalysis(Analysis[Range]):
    """Ranges of all integer values of one kernel."""

    function: Function
    symbols: dict[str, Range]
    latest: dict[Value, Range] = field(default_factory=dict[Value, Range])  # of every operand met
    widened: dict[Value, int] = field(default_factory=dict[Value, int])
    marks: tuple[int, ...] = ()

    def parameter(self, value: Value) -> Range:
        return self.symbols.get(self.function.parameter_of(value).name) or self.top(value)

    def top(self, value: Value) -> Range:
        # Shared memory that is no matrix has no dtype, and nobody asks for its range.
        return of_dtype(getattr(value.type, "dtype", f32))

    def join(self, left: Range, right: Range) -> Range:
        return join(left, right)

    def widen(self, value: Value, before: Range, after: Range) -> Range:
        """To the next landmark that the kernel's text suggests, so that `where(c > 0, c - 1, 4)` stops at 0; after a few of
        them to the ends of the type."""
        top = self.top(value)
        count = self.widened[value] = self.widened.get(value, 0) + 1
        marks = self._landmarks() if count <= LANDMARKS else ()
        low = max((m for m in marks if top.low <= m <= after.low), default=top.low)
        high = min((m for m in marks if after.high <= m <= top.high), default=top.high)
        low = before.low if after.low >= before.low else low
        high = before.high if after.high <= before.high else high
        return between(low, high, after.modulus, after.rest)

    def _landmarks(self) -> tuple[int, ...]:
        if not self.marks:
            found = {0, MAX_DIM}  # `minimum(c + 1, N)` stops at the largest extent
            for op in self.function.body.walk():
                if isinstance(op, Constant) and isinstance(op.value, int):
                    found |= {op.value - 1, op.value, op.value + 1}
            self.marks = tuple(sorted(found))
        return self.marks

    def induction(self, op: For, lower: Range, upper: Range, step: Range) -> Range:
        # The step is positive and the counter fits: of every loop, obligations say so.
        counted = Range(lower.low, upper.high - 1, gcd(lower.modulus, step.modulus, step.rest), lower.rest)
        return within(counted, counted.low, counted.high) or lower  # a body that never runs: it begins there, if at all

    def transfer(self, op: Op, operands: list[Range]) -> list[Range]:
        if not op.results:
            return []
        self.latest.update(zip(op.operands, operands, strict=True))
        found = self._result(op, operands)
        return self._within_type(op, found)

    def _within_type(self, op: Op, found: Range | None) -> list[Range]:
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
            case BlockId():
                return between(0, max(0, self._grid(op.axis).high - 1))
            case NumBlocks():
                return self._grid(op.axis)
            case DimValue():
                return self.symbols[op.symbol]
            case Select():
                return selected(op, self.latest, self.under)
            case _:
                return op.result_range(operands)

    def under(self, op: Op, operands: list[Range]) -> Range:
        """Range of an element-wise operation's result for operands that are known better than in general."""
        return self._within_type(op, self._result(op, operands))[0]

    def _grid(self, axis: int) -> Range:
        if axis >= len(self.function.grid):
            return exactly(1)
        extent = expr_range(self.function.grid[axis], self.symbols)
        # An extent that is always beyond its limit has no launch.
        return within(extent, extent.low, GRID_LIMITS[axis]) or Range(1, GRID_LIMITS[axis])


def unwrapped(op: Op, ranges: Mapping[Value, Range]) -> Range | None:
    """Range of the result of integer arithmetic on its operands if integers had no end; None where nothing is known."""
    operands = [ranges[value] for value in op.operands]
    if isinstance(op, Binary):
        return arithmetic(op.kind, *operands, bits=op.result.tile.dtype.bits)
    if isinstance(op, Unary):
        return unary(op.kind, operands[0], op.result.tile.dtype)
    return operands[0] if isinstance(op, Cast) else None


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
