"""Ranges of index values with the divisibility that launch preconditions promise, for choosing vector widths.

Runs on proven kernels: index arithmetic does not wrap there, so a congruence survives where the interval alone would not, and
`requires(H % 8 == 0)` may be used because the launcher checks it.
"""

from __future__ import annotations

from math import gcd

from tilec.ir.core import Function, Op, Value
from tilec.ir.expr import Expr
from tilec.passes.dataflow import solve
from tilec.passes.ranges import Range, RangeAnalysis, between, expr_range, symbol_ranges


class _ProvenRanges(RangeAnalysis):
    """Ranges where no result wraps: what leaves the type is clipped to it and keeps its congruence."""

    def transfer(self, op: Op, operands: list[Range]) -> list[Range]:
        found = self._result(op, operands) if len(op.results) == 1 else None
        if found is None:
            return super().transfer(op, operands)
        top = self.top(op.results[0])
        low, high = max(found.low, top.low), min(found.high, top.high)
        return [between(low, high, found.modulus, found.rest)]


def promised_symbols(function: Function) -> dict[str, Range]:
    """Ranges of launch values, with `requires(X % constant == constant)` applied."""
    symbols = symbol_ranges(function)
    for precondition in function.requires:
        for condition in _conjuncts(precondition.condition):
            _apply(condition, symbols)
    return symbols


def aligned_ranges(function: Function) -> dict[Value, Range]:
    """Range and congruence of every integer value of a proven kernel."""
    return solve(function, _ProvenRanges(function, promised_symbols(function)))


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
