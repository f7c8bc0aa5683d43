"""Types and ranges of a kernel's expressions by source location, for editors and similar tools.

In: a function as the frontend made it, and the value of each source expression. Out: for each location a `Fact`, which is valid
in every launch that satisfies the kernel's contract. Facts that assume no wrapping are given only for proven kernels, and only
for values with that proof.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tilec.diagnostics.diagnostic import Span
from tilec.ir.core import Function, Op, Value
from tilec.ir.facts.range_facts import Range, within
from tilec.ir.ops import MemoryOp
from tilec.ir.packed import Codes, authored_dims
from tilec.ir.types import DType, TensorType, TileType
from tilec.passes.analysis.declared_ranges import declared_ranges, required
from tilec.passes.analysis.divisibility import aligned_ranges, promised_symbols
from tilec.passes.analysis.obligations import note_proofs
from tilec.passes.analysis.ranges import value_ranges
from tilec.passes.analysis.relevance import deciding_ops, trusted_ops


@dataclass(frozen=True, slots=True)
class Fact:
    """An expression's `type` as kernels write it, and for integers `low <= v <= high` and `v % modulus == rest` for every
    element (`modulus` 0: the constant `rest`; 1: nothing known). `low` is None if there is no range, as for a float. `whole`:
    the range is that of the dtype. `span` is None for names that a launch defines: dims and scalars."""

    span: Span | None
    type: str
    low: int | None = None
    high: int | None = None
    modulus: int = 1
    rest: int = 0
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """`by_location`: facts by source location, in source order without duplicates. `names`: facts of parameters, dims and
    constants. `accesses`: locations of memory accesses, as obligations name them; a store has no value, and so no fact."""

    by_location: tuple[Fact, ...]
    names: dict[str, Fact]
    accesses: tuple[Span, ...] = ()


def facts(function: Function, uses: Iterable[tuple[Span, Any]], *, proven: bool) -> Facts:
    """Facts of `uses`, the list that `tilec.frontend.load_kernel` fills; terms that are not values, and values outside of the
    kernel, are skipped. `proven`: the prover has accepted the kernel."""
    ranges = _ranges(function, proven=proven)
    found: dict[Fact, None] = {}
    for span, term in uses:
        fact = _fact(span, term, ranges)
        if fact is not None:
            found[fact] = None
    facts_by_location = sorted(found, key=_source_order)
    accesses = {op.loc for op in function.body.walk() if isinstance(op, MemoryOp) and op.loc is not None}
    return Facts(tuple(facts_by_location), _names(function, ranges), tuple(sorted(accesses, key=str)))


def _ranges(function: Function, *, proven: bool) -> dict[Value, Range]:
    """The intersection of all analyses' ranges for each value."""
    found = value_ranges(function)
    for value, other in declared_ranges(function).items():
        found[value] = _both(found[value], other)
    if proven:
        note_proofs(function)
        proven_ops = {*deciding_ops(function)} - trusted_ops(function)
        for value, other in aligned_ranges(function).items():
            if isinstance(value.owner, Op) and value.owner in proven_ops:
                found[value] = _both(found[value], other)
    return found


def _both(left: Range, right: Range) -> Range:
    """Intersection of two ranges, with the stronger of the two congruences; `left` if it is empty, as for unreachable code."""
    sharper, other = (right, left) if left.modulus and (not right.modulus or right.modulus > left.modulus) else (left, right)
    return within(sharper, other.low, other.high) or left


def _fact(span: Span | None, term: Any, ranges: dict[Value, Range]) -> Fact | None:
    if isinstance(term, DType):
        return Fact(span, f"dtype {term}")
    if isinstance(term, Codes):
        return Fact(span, str(TileType(term.dtype, term.value.tile.shape)))
    if not isinstance(term, Value) or term not in ranges:
        return None
    if isinstance(term.type, TensorType):
        return Fact(span, _tensor_text(term.type))
    if not isinstance(term.type, TileType):
        return None
    return _of_range(span, str(term.type), term.type.dtype, ranges[term])


def _of_range(span: Span | None, text: str, dtype: DType, known: Range) -> Fact:
    if dtype.is_float:
        return Fact(span, text)
    least, greatest = dtype.integer_range()
    low, high = max(known.low, least), min(known.high, greatest)
    return Fact(span, text, low, high, known.modulus, known.rest, (low, high) == (least, greatest))


def _tensor_text(type_: TensorType) -> str:
    """For example `tensor bf16[T, 2560]`."""
    return f"tensor {type_.packed or type_.dtype}[{', '.join(map(str, authored_dims(type_)))}]"


def _names(function: Function, ranges: dict[Value, Range]) -> dict[str, Fact]:
    """Facts of parameters, symbolic dims and constants."""
    symbols = promised_symbols(function)
    for bound in required(function):
        known = symbols[bound.symbol]
        symbols[bound.symbol] = _both(known, Range(bound.low, bound.high))
    found: dict[str, Fact] = {}
    for name in function.dims:
        known = symbols[name]
        found[name] = Fact(None, "dim", known.low, known.high, known.modulus, known.rest)
    for parameter in function.parameters:
        known = symbols.get(parameter.name)
        if known is not None:
            ranges = ranges | {parameter.value: _both(ranges[parameter.value], known)}
        fact = _fact(None, parameter.value, ranges)
        if fact is not None:
            found[parameter.name] = fact
    for name, value in function.constants.items():
        found[name] = Fact(None, f"constant {value}")
    return found


def _source_order(fact: Fact) -> tuple[str, int, int]:
    assert fact.span is not None
    return fact.span.file, fact.span.line, fact.span.column
