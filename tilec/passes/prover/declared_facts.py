"""What `values` declares of the integers that tensors hold, as facts about the elements that a system mentions.

In go the translation of a kernel and the atoms of loaded elements, out come formulas with the declaration that each rests on.
A tensor has an element in every launch, since the contract refuses an extent of 0, so that declared ranges are never empty.

What lies outside a tensor is no element, and nobody relies on it: a read there is refused, or takes its `pad`. Facts may still
speak of it where some numbers there fulfil all of them. Ranges, order and ends do at once for what repeats the first element
before the tensor and the last one behind it. Distinct numbers do not, so what rests on them says that both places are inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from tilec.ir.core import Access, ValueFact
from tilec.ir.types import MAX_DIM
from tilec.passes.prover import terms
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.terms import Atom, Formula, Kind, Poly

MAX_LOADED_PAIRS = 28


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that a launch is known to satisfy, and the words in which the kernel or the contract says it."""

    text: str
    formula: Formula


def declaration(fact: ValueFact) -> str:
    """The declaration as its author wrote it."""
    return f"values({fact.tensor}, {fact.low}, {fact.high}{''.join(f', {name}=True' for name in fact.said)})"


def stored_facts(index: IndexTerms, base: list[Formula]) -> list[Fact]:
    """What `values` says of the elements in a system, and of the sizes in it."""
    atoms = terms.closure(base)
    loaded = [atom for atom in atoms if atom.kind is Kind.LOADED]
    symbols = {atom for atom in atoms if atom.kind is Kind.SYMBOL}
    found: list[Fact] = []
    for fact in index.function.values:
        if index.function.parameter(fact.tensor).access not in (Access.IN, Access.INOUT):
            continue  # an atom of an `InOut` tensor is what it held before the launch
        elements = [atom for atom in loaded if atom.label == fact.tensor]
        about_sizes = [room for room in _room(index, fact) if symbols.intersection(terms.closure([room]))]
        about_pairs = _pairs(index, fact, elements)
        found += [Fact(declaration(fact), formula) for formula in (*_each(index, fact, elements), *about_sizes, *about_pairs)]
    return found


def extent_facts(index: IndexTerms) -> list[Fact]:
    """What the launcher makes sure of for extents that are computed, or given by a scalar: each is 1 to `MAX_DIM`, as a
    measured one is by its range. A launch whose `M * N` is more is refused, so that `i * N + j` inside fits an i32."""
    found: dict[Formula, Fact] = {}
    for parameter in index.function.parameters:
        if parameter.access is None:
            continue
        for dim in parameter.value.tensor.dims:
            extent, text = index.expression(dim), f"1 <= {dim} <= {MAX_DIM}"
            for formula in (terms.ge(extent, 1), terms.ge(terms.const(MAX_DIM), extent)):
                if formula != terms.TRUE:
                    found.setdefault(formula, Fact(text, formula))
    return list(found.values())


def consistency(formulas: Iterable[Formula]) -> list[Formula]:
    """A loaded element is a function of its index: equal index, equal value."""
    loaded = [atom for atom in terms.closure(formulas) if atom.kind is Kind.LOADED]
    pairs = [(a, b) for a, b in combinations(loaded, 2) if a.label == b.label]
    found: list[Formula] = []
    for left, right in pairs[:MAX_LOADED_PAIRS]:
        differs = [terms.ne(a, b) for a, b in zip(left.args, right.args, strict=True)]
        found.append(terms.disjunction((*differs, terms.eq(terms.of(left), terms.of(right)))))
    return found


def dims_of(index: IndexTerms, tensor: str) -> list[Poly]:
    """Extents of a tensor."""
    return [index.expression(dim) for dim in index.function.parameter(tensor).value.tensor.dims]


def _each(index: IndexTerms, fact: ValueFact, elements: list[Atom]) -> Iterator[Formula]:
    """The range of every element, and which number the ends are."""
    low, high = index.expression(fact.low), index.expression(fact.high)
    for atom in elements:
        value = terms.of(atom)
        yield terms.conjunction((terms.ge(value, low), terms.lt(value, high)))
        if fact.ends:
            (count,), (place,) = dims_of(index, fact.tensor), atom.args
            yield terms.disjunction((terms.ge(place, 1), terms.eq(value, low)))
            yield terms.disjunction((terms.lt(place, count - 1), terms.eq(value, high - 1)))


def _room(index: IndexTerms, fact: ValueFact) -> Iterator[Formula]:
    """Distinct numbers need as many to choose from; the two ends are different numbers only where there are two elements."""
    low, high = index.expression(fact.low), index.expression(fact.high)
    count = terms.ONE
    for dim in dims_of(index, fact.tensor):
        count = count * dim
    if fact.distinct:
        yield terms.ge(high - low, count)
    if fact.ends:
        yield terms.disjunction((terms.ge(count, 2), terms.eq(high - low, 1)))


def _pairs(index: IndexTerms, fact: ValueFact, elements: list[Atom]) -> Iterator[Formula]:
    """What the declaration says of two elements at a time."""
    for left, right in list(combinations(elements, 2))[:MAX_LOADED_PAIRS]:
        if fact.sorted:
            yield _in_order(left, right)
        if fact.distinct:
            yield _distinct(dims_of(index, fact.tensor), left, right, fact.sorted)


def _in_order(left: Atom, right: Atom) -> Formula:
    """The later of two elements is not the smaller one."""
    (first,), (second,) = left.args, right.args
    rising = terms.conjunction((terms.ge(second, first), terms.ge(terms.of(right), terms.of(left))))
    falling = terms.conjunction((terms.ge(first, second), terms.ge(terms.of(left), terms.of(right))))
    return terms.disjunction((rising, falling))


def _distinct(dims: list[Poly], left: Atom, right: Atom, in_order: bool) -> Formula:
    """Elements at different places inside the tensor differ; where they are in order too, by as much as the places do."""
    outside = [
        formula
        for atom in (left, right)
        for place, dim in zip(atom.args, dims, strict=True)
        for formula in (terms.lt(place, 0), terms.ge(place, dim))
    ]
    same = terms.conjunction(terms.eq(a, b) for a, b in zip(left.args, right.args, strict=True))
    differ = [terms.ne(terms.of(left), terms.of(right))]
    if in_order:
        gap, steps = terms.of(right) - terms.of(left), right.args[0] - left.args[0]
        differ = [terms.conjunction((terms.ge(steps, 1), terms.ge(gap, steps)))]
        differ.append(terms.conjunction((terms.lt(steps, 0), terms.ge(steps, gap))))
    return terms.disjunction((*outside, same, *differ))
