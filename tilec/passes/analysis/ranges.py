"""Ranges and divisibility of integer values, derived for every value by the fixpoint solver.

A fact `low <= v <= high and v % modulus == rest` is true for every element of a tile. `modulus` 0 means that the value is the
constant `rest`. Facts declared by the kernel (`requires`, `values`) are not used, so these ranges need no check at launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import Final

from tilec.ir.core import Function, Op, Value
from tilec.ir.expr import Expr
from tilec.ir.facts.range_facts import Range, arithmetic, between, exactly, join, of_dtype, unary, within
from tilec.ir.ops import Binary, BlockId, Cast, Constant, DimValue, For, NumBlocks, Select, Sort, Unary
from tilec.ir.ops.butterfly_ops import ButterflyLoad, ButterflyStore
from tilec.ir.ops.staging_ops import ScratchLoad, ScratchStore
from tilec.ir.ops.take_ops import TakeLoad
from tilec.ir.types import MAX_DIM, TileType, f32
from tilec.passes.analysis.dataflow import Analysis, solve
from tilec.passes.analysis.selected_ranges import selected

GRID_LIMITS: Final = (2**31 - 1, 65535, 65535)
"""Largest grid extent per axis that CUDA launches."""
MAX_THRESHOLDS: Final = 4  # number of widenings of a value to a threshold before it is widened to its type


def expr_range(expr: Expr, symbols: Mapping[str, Range]) -> Range:
    """Range of a host expression."""
    if expr.op == "const":
        return exactly(expr.value)
    if expr.op == "sym":
        return symbols[expr.name]
    left, right = (expr_range(arg, symbols) for arg in expr.args)
    kind = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod", "min": "min", "max": "max"}.get(expr.op)
    found = arithmetic(kind, left, right) if kind is not None else None
    return found or Range(0, 1)  # comparisons, and `and`, `or` of booleans


@dataclass(slots=True)
class RangeAnalysis(Analysis[Range]):
    """Ranges of all integer values of one kernel."""

    function: Function
    symbols: dict[str, Range]
    latest: dict[Value, Range] = field(default_factory=dict[Value, Range])  # of every operand visited so far
    widened: dict[Value, int] = field(default_factory=dict[Value, int])
    thresholds: tuple[int, ...] = ()
    writers: dict[Value, Op] = field(default_factory=dict[Value, Op])  # the first of a tile into each scratch
    stored: dict[Value, Range] = field(default_factory=dict[Value, Range])  # what tiles in scratch hold

    def parameter(self, value: Value) -> Range:
        return self.symbols.get(self.function.parameter_of(value).name) or self.top(value)

    def top(self, value: Value) -> Range:
        # Scratch and rings have no dtype, and their range is not used.
        return of_dtype(getattr(value.type, "dtype", f32))

    def join(self, left: Range, right: Range) -> Range:
        return join(left, right)

    def widen(self, value: Value, before: Range, after: Range) -> Range:
        """Widening with thresholds: to the next constant of the kernel (or one off), so that `where(c > 0, c - 1, 4)` stops at
        0; after `MAX_THRESHOLDS` times, to the ends of the type."""
        top = self.top(value)
        count = self.widened[value] = self.widened.get(value, 0) + 1
        thresholds = self.constants() if count <= MAX_THRESHOLDS else ()
        low = max((m for m in thresholds if top.low <= m <= after.low), default=top.low)
        high = min((m for m in thresholds if after.high <= m <= top.high), default=top.high)
        low = before.low if after.low >= before.low else low
        high = before.high if after.high <= before.high else high
        return between(low, high, after.modulus, after.rest)

    def constants(self) -> tuple[int, ...]:
        """The constants of the kernel and their neighbours, 0, and the largest extent."""
        if not self.thresholds:
            found = {0, MAX_DIM}  # `minimum(c + 1, N)` stops at the largest extent
            for op in self.function.body.walk():
                if isinstance(op, Constant) and isinstance(op.value, int):
                    found |= {op.value - 1, op.value, op.value + 1}
            self.thresholds = tuple(sorted(found))
        return self.thresholds

    def induction(self, op: For, lower: Range, upper: Range, step: Range) -> Range:
        # Every loop has obligations that its step is positive and its variable fits.
        counted = Range(lower.low, upper.high - 1, gcd(lower.modulus, step.modulus, step.rest), lower.rest)
        return within(counted, counted.low, counted.high) or lower  # empty: the body never runs, so any fact is true

    def transfer(self, op: Op, operands: list[Range]) -> list[Range]:
        if isinstance(op, ScratchStore | ButterflyStore):
            (scratch, _), (_, stored) = op.operands, operands
            is_alone = self.writers.setdefault(scratch, op) is op
            self.stored[scratch] = stored if is_alone else self.top(op.operands[1])
        if not op.results:
            return []
        self.latest.update(zip(op.operands, operands, strict=True))
        if isinstance(op, Sort):
            return operands  # the same numbers in another order
        if isinstance(op, ScratchLoad | TakeLoad | ButterflyLoad) and (found := self.stored.get(op.operands[0])) is not None:
            return self._within_type(op, found)
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
        # A result that may wrap has its own obligation; here it may be any value of the type. Wrapping adds a multiple of
        # 2^bits, so divisibility by a power of two survives it.
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
                return selected(op, self.latest, self.refined_result)
            case _:
                return op.result_range(operands)

    def refined_result(self, op: Op, operands: list[Range]) -> Range:
        """Range of an element-wise operation's result for operand ranges that are narrower than the analysis' own."""
        return self._within_type(op, self._result(op, operands))[0]

    def _grid(self, axis: int) -> Range:
        if axis >= len(self.function.grid):
            return exactly(1)
        extent = expr_range(self.function.grid[axis], self.symbols)
        # A grid extent that always exceeds its limit cannot be launched.
        return within(extent, extent.low, GRID_LIMITS[axis]) or Range(1, GRID_LIMITS[axis])


def unwrapped(op: Op, ranges: Mapping[Value, Range]) -> Range | None:
    """Range of an integer operation's result in unbounded arithmetic; None if nothing is known."""
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
