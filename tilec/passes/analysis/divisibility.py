"""Ranges of index values with the divisibility that launch preconditions promise, for choosing vector widths.

Runs on proven kernels: index arithmetic does not wrap there, so a congruence survives where the interval alone would not, and
`requires(H % 8 == 0)` may be used because the launcher checks it. What an `unsafe` access computes its place from has no such
proof and may wrap.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

from tilec.ir.core import Function, Op, Value
from tilec.ir.expr import Expr
from tilec.ir.ops import Binary, Cast, Unary
from tilec.passes.analysis.dataflow import solve
from tilec.passes.analysis.ranges import Range, RangeAnalysis, between, expr_range, symbol_ranges
from tilec.passes.analysis.relevance import trusted_ops


@dataclass(slots=True)
class _ProvenRanges(RangeAnalysis):
    """Ranges where no result wraps, save those of `trusted`: what leaves the type is clipped to it and keeps its congruence."""

    trusted: set[Op] = field(default_factory=set[Op])

    def transfer(self, op: Op, operands: list[Range]) -> list[Range]:
        self.latest.update(zip(op.operands, operands, strict=True))
        found = self._result(op, operands) if _has_obligation(op, operands) and op not in self.trusted else None
        if found is None:
            return RangeAnalysis.transfer(self, op, operands)
        top = self.top(op.results[0])
        low, high = max(found.low, top.low), min(found.high, top.high)
        return [between(low, high, found.modulus, found.rest)]


def _has_obligation(op: Op, operands: list[Range]) -> bool:
    """Whether the prover shows that the operation does not wrap where it feeds an index; it takes the sum of a tile and a shift
    by an unknown amount as they come."""
    if isinstance(op, Binary):
        return op.kind != "shl" or operands[1].constant is not None
    return isinstance(op, Unary | Cast) and op.result.tile.dtype.is_integer


def promised_symbols(function: Function) -> dict[str, Range]:
    """Ranges of launch values, with `requires(X % constant == constant)` applied."""
    symbols = symbol_ranges(function)
    for precondition in function.requires:
        for condition in _conjuncts(precondition.condition):
            _apply(condition, symbols)
    return symbols


def aligned_ranges(function: Function) -> dict[Value, Range]:
    """Range and congruence of every integer value of a proven kernel."""
    return solve(function, _ProvenRanges(function, promised_symbols(function), trusted=trusted_ops(function)))


def divisor(fact: Range) -> int:
    """The largest number known to divide the value; 0 for the constant 0."""
    return gcd(fact.modulus, fact.rest)


def expr_divisor(expr: Expr, symbols: dict[str, Range]) -> int:
    """The largest number known to divide a host expression; 0 for the constant 0."""
    return divisor(expr_range(expr, symbols))


def _conjuncts(condition: Expr) -> list[Expr]:
    if condition.op == "and":
        return [part for arg in condition.args for part in _conjuncts(arg)]
    return [condition]


def _apply(condition: Expr, symbols: dict[str, Range]) -> None:
    if condition.op != "==":
        return
    for left, right in (condition.args, condition.args[::-1]):
        rest = right.constant
        if rest is None or left.op != "%" or left.args[0].op != "sym":
            continue
        modulus, name = left.args[1].constant, left.args[0].name
        fact = symbols.get(name)
        # Of two congruences the one with the larger modulus is kept; both hold.
        if fact is not None and modulus is not None and modulus > fact.modulus and fact.constant is None:
            symbols[name] = between(fact.low, fact.high, modulus, rest)
