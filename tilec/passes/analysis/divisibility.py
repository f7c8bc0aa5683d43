"""Ranges of index values with the divisibility that launch preconditions promise, for choosing vector widths.

Runs on proven kernels, where `requires(H % 8 == 0)` may be used because the launcher checks it. A value that is recorded not to
wrap (`Value.fits`, `tilec.passes.analysis.obligations`) is what integers without end give, so its interval ends where its type
does and a congruence survives. Of any other value nothing is assumed: it may wrap. So may what an `unsafe` access computes its
place from, which may have become one with a value that has a proof elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

from tilec.ir.core import Function, Op, Value
from tilec.ir.expr import Expr
from tilec.ir.range_facts import within
from tilec.passes.analysis.dataflow import solve
from tilec.passes.analysis.ranges import Range, RangeAnalysis, expr_range, symbol_ranges
from tilec.passes.analysis.relevance import trusted_ops


@dataclass(slots=True)
class _ProvenRanges(RangeAnalysis):
    """Ranges where no result that `fits` wraps, save those of `trusted`: these are clipped to the type and keep their
    congruence."""

    trusted: set[Op] = field(default_factory=set[Op])

    def transfer(self, op: Op, operands: list[Range]) -> list[Range]:
        self.latest.update(zip(op.operands, operands, strict=True))
        found = self._result(op, operands) if len(op.results) == 1 and op.result.fits and op not in self.trusted else None
        if found is None:
            return RangeAnalysis.transfer(self, op, operands)
        top = self.top(op.result)
        inside = within(found, top.low, top.high)
        # None that fits: the operation is never executed.
        return [inside] if inside is not None else RangeAnalysis.transfer(self, op, operands)


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
            # No such number in the range: the contract is refused for that.
            symbols[name] = within(Range(fact.low, fact.high, modulus, rest), fact.low, fact.high) or fact
