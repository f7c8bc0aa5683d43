"""Ranges and divisibility of index values under the launch preconditions, for choosing vector widths.

Runs on proven kernels, where `requires(H % 8 == 0)` may be used because the launcher checks it. A value proven not to wrap
(`Value.fits`, `tilec.passes.analysis.obligations`) equals its value in unbounded integers, so its interval is clipped to its
type and its congruence is kept. Any other value may wrap. So may the indices of `unsafe` accesses, even if marked: common
subexpression elimination may have merged one with a value that is proven only for its other uses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

from tilec.ir.core import Function, Op, Value
from tilec.ir.expr import Expr
from tilec.ir.facts.range_facts import within
from tilec.passes.analysis.dataflow import solve
from tilec.passes.analysis.ranges import Range, RangeAnalysis, expr_range, symbol_ranges
from tilec.passes.analysis.relevance import trusted_ops


@dataclass(slots=True)
class _ProvenRanges(RangeAnalysis):
    """Range analysis in which a result that `fits` does not wrap, unless its operation is in `trusted`: its range is clipped to
    its type and keeps its congruence."""

    trusted: set[Op] = field(default_factory=set[Op])

    def transfer(self, op: Op, operands: list[Range]) -> list[Range]:
        self.latest.update(zip(op.operands, operands, strict=True))
        found = self._result(op, operands) if len(op.results) == 1 and op.result.fits and op not in self.trusted else None
        if found is None:
            return RangeAnalysis.transfer(self, op, operands)
        top = self.top(op.result)
        inside = within(found, top.low, top.high)
        # An empty intersection means that the operation is never executed.
        return [inside] if inside is not None else RangeAnalysis.transfer(self, op, operands)


def promised_symbols(function: Function) -> dict[str, Range]:
    """Ranges of dims, strides and scalar parameters, with `requires(X % constant == constant)` applied."""
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
        # Two congruences cannot be combined here; the one with the larger modulus is kept.
        if fact is not None and modulus is not None and modulus > fact.modulus and fact.constant is None:
            # If the range has no such number, no launch satisfies the contract, which is then refused.
            symbols[name] = within(Range(fact.low, fact.high, modulus, rest), fact.low, fact.high) or fact
