"""Ranges of integer values that use the kernel's declarations: `values` of tensors, `requires` on single symbols.

In: a function. Out: for each value a range that is valid in every launch that satisfies the declarations, which the launcher
checks. `tilec.passes.analysis.ranges` uses no declarations, because generated code depends on it. Only proofs use these ranges,
and record the declarations that they depend on (`tilec.passes.prover.ladder`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from tilec.ir.core import Access, Block, Function, Op, Value, ValueFact
from tilec.ir.facts.range_facts import Range, exactly, join, within
from tilec.ir.ops import BlockId, DimValue, Gather, Load, NumBlocks
from tilec.passes.analysis.dataflow import solve
from tilec.passes.analysis.ranges import RangeAnalysis, expr_range, symbol_ranges


@dataclass(slots=True)
class _DeclaredAnalysis(RangeAnalysis):
    declared: dict[str, Range] = field(default_factory=dict[str, Range])

    def _result(self, op: Op, operands: list[Range]) -> Range | None:
        if isinstance(op, Load | Gather) and op.unsafe is None:
            bounds = self.declared.get(self.function.parameter_of(op.source).name)
            if bounds is not None:
                return bounds if op.pad is None else join(bounds, exactly(int(op.pad)))
        return RangeAnalysis._result(self, op, operands)


def declared_analysis(function: Function, values: Iterable[ValueFact], bounds: Iterable[Bound]) -> RangeAnalysis:
    """The analysis of the ranges that these declarations imply."""
    symbols = _declared_symbols(function, bounds)
    return _DeclaredAnalysis(function, symbols, declared=_declared(function, values, symbols))


def declared_ranges(function: Function) -> dict[Value, Range]:
    """Ranges of every value; for tiles, of every element. Empty if the kernel declares nothing."""
    symbols = _declared_symbols(function, required(function))
    declared = _declared(function, function.values, symbols)
    if not declared and symbols == symbol_ranges(function):
        return {}
    return solve(function, _DeclaredAnalysis(function, symbols, declared=declared))


def _declared_symbols(function: Function, bounds: Iterable[Bound]) -> dict[str, Range]:
    """Ranges of symbols within bounds that preconditions state."""
    symbols = symbol_ranges(function)
    for bound in bounds:
        known = within(symbols[bound.symbol], bound.low, bound.high)
        if known is not None:  # else no launch satisfies the contract, which is then refused
            symbols[bound.symbol] = known
    return symbols


@dataclass(frozen=True, slots=True)
class Bound:
    """`low <= symbol <= high`, from a precondition with source text `text`."""

    symbol: str
    low: int
    high: int
    text: str


def required(function: Function) -> list[Bound]:
    """Preconditions that compare one symbol with a constant."""
    known = symbol_ranges(function)
    found: list[Bound] = []
    for precondition in function.requires:
        pending = [precondition.condition]
        while pending:
            part = pending.pop()
            if part.op == "and":
                pending += part.args
            elif part.op in _BOUNDS:
                left, right = part.args
                kind = part.op if left.op == "sym" else _MIRRORED[part.op]
                symbol, limit = (left, right) if left.op == "sym" else (right, left)
                if symbol.op == "sym" and symbol.name in known and limit.op == "const":
                    low, high = _BOUNDS[kind](limit.value)
                    found.append(Bound(symbol.name, low, high, f"requires({precondition.condition})"))
    return found


_FAR: Final = 2**70  # past every symbol
_BOUNDS: Final[dict[str, Callable[[int], tuple[int, int]]]] = {
    ">=": lambda n: (n, _FAR),
    ">": lambda n: (n + 1, _FAR),
    "<": lambda n: (-_FAR, n - 1),
    "<=": lambda n: (-_FAR, n),
    "==": lambda n: (n, n),
}

_MIRRORED: Final = {">=": "<=", ">": "<", "<": ">", "<=": ">=", "==": "=="}


def _declared(function: Function, values: Iterable[ValueFact], symbols: dict[str, Range]) -> dict[str, Range]:
    found: dict[str, Range] = {}
    for fact in values:
        parameter = function.parameter(fact.tensor)
        dtype = parameter.value.tensor.dtype
        if parameter.access is not Access.IN or not dtype.is_integer:
            continue
        least, greatest = dtype.integer_range()
        low = max(least, expr_range(fact.low, symbols).low)
        high = min(greatest, expr_range(fact.high, symbols).high - 1)
        if fact.tensor in found:
            low, high = max(low, found[fact.tensor].low), min(high, found[fact.tensor].high)
        if low <= high:  # else no launch satisfies the contract, which is then refused
            found[fact.tensor] = exactly(low) if low == high else Range(low, high)
    return found


def sources(value: Value, function: Function) -> frozenset[str]:
    """Names of the tensors and symbols that a value depends on; for a loop or branch, all that are read inside."""
    loops = {region: op for op in function.body.walk() for region in op.regions}
    found: set[str] = set()
    seen: set[Op] = set()
    pending = [value]
    scalars = {p.value: p.name for p in function.parameters}
    while pending:
        value = pending.pop()
        owner = value.owner
        if value in scalars:
            found.add(scalars[value])
        op = loops.get(owner) if isinstance(owner, Block) else owner
        for visited in () if op is None or op in seen else (op, *(inner for region in op.regions for inner in region.walk())):
            seen.add(visited)
            pending += visited.operands
            if isinstance(visited, DimValue):
                found.add(visited.symbol)
            elif isinstance(visited, BlockId | NumBlocks):
                found |= {name for extent in function.grid for name in extent.symbols()}
            elif isinstance(visited, Load | Gather):
                name = function.parameter_of(visited.source).name
                ends = [end for fact in function.values if fact.tensor == name for end in (fact.low, fact.high)]
                found |= {name, *(symbol for end in ends for symbol in end.symbols())}
    return frozenset(found)
