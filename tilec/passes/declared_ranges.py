"""Ranges of integer values under what the kernel declares of its tensors with `values`.

In: a function. Out: for each value a range that holds in every launch whose tensors hold what is declared, which the launcher
checks. `tilec.passes.ranges` uses no declaration, because marks in machine code rest on it; here proofs alone may look, and
say in their record what they rest on (`tilec.passes.ladder`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.ir.core import Access, Block, Function, Op, Value
from tilec.ir.ops import Gather, Load
from tilec.passes.dataflow import solve
from tilec.passes.range_facts import Range, exactly, join
from tilec.passes.ranges import RangeAnalysis, expr_range, symbol_ranges


@dataclass(slots=True)
class _DeclaredAnalysis(RangeAnalysis):
    declared: dict[str, Range] = field(default_factory=dict[str, Range])

    def _result(self, op: Op, operands: list[Range]) -> Range | None:
        if isinstance(op, Load | Gather) and op.unsafe is None:
            bounds = self.declared.get(self.function.parameter_of(op.source).name)
            if bounds is not None:
                return bounds if op.pad is None else join(bounds, exactly(int(op.pad)))
        return RangeAnalysis._result(self, op, operands)


def declared_ranges(function: Function) -> dict[Value, Range]:
    """Ranges of every value; for tiles, of every element. Empty where nothing is declared."""
    declared = _declared(function)
    return solve(function, _DeclaredAnalysis(function, symbol_ranges(function), declared=declared)) if declared else {}


def _declared(function: Function) -> dict[str, Range]:
    found: dict[str, Range] = {}
    symbols = symbol_ranges(function)
    for fact in function.values:
        parameter = function.parameter(fact.tensor)
        dtype = parameter.value.tensor.dtype
        if parameter.access is not Access.IN or not dtype.is_integer:
            continue
        least, greatest = dtype.integer_range()
        low = max(least, expr_range(fact.low, symbols).low)
        high = min(greatest, expr_range(fact.high, symbols).high - 1)
        if fact.tensor in found:
            low, high = max(low, found[fact.tensor].low), min(high, found[fact.tensor].high)
        if low <= high:  # else no launch satisfies it, and the contract is refused for that
            found[fact.tensor] = exactly(low) if low == high else Range(low, high)
    return found


def sources(value: Value, function: Function) -> frozenset[str]:
    """Names of the tensors that are read on the way to a value; of a loop or branch, all that are read inside."""
    loops = {region: op for op in function.body.walk() for region in op.regions}
    found: set[str] = set()
    seen: set[Op] = set()
    waiting = [value]
    while waiting:
        owner = waiting.pop().owner
        op = loops.get(owner) if isinstance(owner, Block) else owner
        for each in () if op is None or op in seen else (op, *(inner for region in op.regions for inner in region.walk())):
            if each not in seen:
                seen.add(each)
                waiting += each.operands
                if isinstance(each, Load | Gather):
                    found.add(function.parameter_of(each.source).name)
    return frozenset(found)
