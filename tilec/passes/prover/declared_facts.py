"""Facts about the elements in a system that follow from `values` declarations of tensor contents.

In: the translation of a kernel and the atoms of loaded elements. Out: formulas with the declaration of each. A tensor has an
element in every launch, since the contract excludes an extent of 0, so declared ranges are never empty.

No proof relies on values outside a tensor: a read there is refused, or reads its `pad`. Facts may still mention such
indices, provided that some values there satisfy all facts. Range, order and ends are satisfied by repeating the first
element before the tensor and the last one after it. Distinctness is not, so its formulas require that both indices are
inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from tilec.ir.core import Access, ValueFact
from tilec.ir.types import MAX_DIM
from tilec.passes.prover import terms
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.terms import Atom, Formula, Kind, Poly

MAX_LOADED_PAIRS = 28


@dataclass(frozen=True, slots=True)
class Fact:
    """A condition that every launch is known to satisfy, and its text in the kernel or the contract."""

    text: str
    formula: Formula


def declaration(fact: ValueFact) -> str:
    """The declaration as its author wrote it."""
    return f"values({fact.tensor}, {fact.low}, {fact.high}{''.join(f', {name}=True' for name in fact.flags)})"


def stored_facts(index: IndexTerms, base: list[Formula]) -> list[Fact]:
    """Facts from `values` about the elements and the sizes in a system."""
    atoms = terms.closure(base)
    symbols = {atom for atom in atoms if atom.kind is Kind.SYMBOL}
    found: list[Fact] = []
    for fact in index.function.values:
        if index.function.parameter(fact.tensor).access not in (Access.IN, Access.INOUT):
            continue  # an atom of an `InOut` tensor is an element before the launch
        text, whole = _with_the_others(index, fact)
        about_sizes = [room for room in _room(index, whole) if symbols.intersection(terms.closure([room]))]
        found += [replace(one, text=text) for one in facts_of(index, whole, base, about_sizes)]
    return found


def _with_the_others(index: IndexTerms, fact: ValueFact) -> tuple[str, ValueFact]:
    """A declaration with the order and the distinctness that others state of its tensor, and the text of all of these. They
    bind together: sorted integers that are distinct leave room in each declared range."""
    others = [one for one in index.function.values if one.tensor == fact.tensor and one is not fact]
    adding = [
        one
        for one in others
        if one.sorted > fact.sorted
        or one.distinct > fact.distinct
        or (one.distinct_in_rows > fact.distinct_in_rows and not fact.distinct)
    ]
    whole = replace(
        fact,
        sorted=fact.sorted or any(one.sorted for one in adding),
        distinct=fact.distinct or any(one.distinct for one in adding),
        distinct_in_rows=fact.distinct_in_rows or any(one.distinct_in_rows for one in adding),
    )
    return " and ".join(map(declaration, (fact, *adding))), whole


def facts_of(index: IndexTerms, fact: ValueFact, base: list[Formula], about_sizes: Iterable[Formula] = ()) -> list[Fact]:
    """What one declaration says about the elements in a system, with facts about sizes between those of one and of two."""
    elements = [atom for atom in terms.closure(base) if atom.kind is Kind.LOADED and atom.label == fact.tensor]
    formulas = (*_each(index, fact, elements), *about_sizes, *_pairs(index, fact, elements))
    return [Fact(declaration(fact), formula) for formula in formulas]


def extent_facts(index: IndexTerms) -> list[Fact]:
    """Facts that the launcher checks for extents that are computed or given by a scalar: each is 1 to `MAX_DIM`, which ranges
    already state for measured extents. A launch whose `M * N` is larger is rejected, so that `i * N + j` inside fits an i32."""
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
    """A loaded element is a function of its index: equal indices, equal values. So is the position from which a sort takes an
    element; along the sorted axis, it is different for each position. Facts about sums are included."""
    formulas = list(formulas)
    loaded = [atom for atom in terms.closure(formulas) if atom.kind is Kind.LOADED and not atom.is_sum]
    pairs = [(a, b) for a, b in combinations(loaded, 2) if a.label == b.label]
    found = sum_facts(formulas)
    for left, right in pairs[:MAX_LOADED_PAIRS]:
        differs = [terms.ne(a, b) for a, b in zip(left.args, right.args, strict=True)]
        found.append(terms.disjunction((*differs, terms.eq(terms.of(left), terms.of(right)))))
        if left.is_order:
            same = terms.eq(left.args[-1], right.args[-1])
            found.append(terms.disjunction((*differs[:-1], same, terms.ne(terms.of(left), terms.of(right)))))
    return found


def sum_facts(formulas: Iterable[Formula]) -> list[Formula]:
    """Prefix sums in a system lie between those of the least and the largest elements; two of a row differ by its elements."""
    sums = [atom for atom in terms.closure(formulas) if atom.is_sum]
    pairs = list(combinations(sums, 2))[:MAX_LOADED_PAIRS]
    return [*map(_total, sums), *(_risen(a, b) for a, b in pairs if a.label == b.label)]


def has_sums_of_one_row(formulas: Iterable[Formula]) -> bool:
    """Whether two prefix sums in a system are of one row whatever the unknowns are, as in two positions of one tile."""
    rows = [(atom.label, atom.args[:-4]) for atom in terms.closure(formulas) if atom.is_sum]
    return len(set(rows)) < len(rows)


def _total(atom: Atom) -> Formula:
    """A prefix sum lies between the least and the largest sum of as many elements."""
    *_, count, least, largest, _ = atom.args
    return terms.conjunction((terms.ge(terms.of(atom), count * least), terms.ge(count * largest, terms.of(atom))))


def _risen(left: Atom, right: Atom) -> Formula:
    """Of two prefix sums of one row, that of more elements contains the other, the element after it, and those between."""
    *index, before, least, largest, own = left.args
    *other_index, other_before, _, _, other_own = right.args
    cases = [terms.ne(a, b) for a, b in zip(index, other_index, strict=True)]
    cases.append(terms.conjunction((terms.eq(before, other_before), terms.eq(terms.of(left), terms.of(right)))))
    for low, high, step, count in (
        (left, right, own, other_before - before - 1),
        (right, left, other_own, before - other_before - 1),
    ):
        between = terms.of(high) - terms.of(low) - step
        cases.append(terms.conjunction((terms.ge(count), terms.ge(between, count * least), terms.ge(count * largest, between))))
    return terms.disjunction(cases)


def dims_of(index: IndexTerms, tensor: str) -> list[Poly]:
    return [index.expression(dim) for dim in index.function.parameter(tensor).value.tensor.dims]


def _each(index: IndexTerms, fact: ValueFact, elements: list[Atom]) -> Iterator[Formula]:
    """The range of every element, and the values of the first and the last. Sorted and distinct integers rise by at least one
    from each to the next, so as many as there are before an element are between it and the least, and likewise above it."""
    low, high = index.expression(fact.low), index.expression(fact.high)
    for atom in elements:
        value = terms.of(atom)
        yield terms.conjunction((terms.ge(value, low), terms.lt(value, high)))
        if fact.sorted and fact.distinct:
            (count,), (position,) = dims_of(index, fact.tensor), atom.args
            outside = (terms.lt(position, 0), terms.ge(position, count))
            between = terms.conjunction((terms.ge(value - low, position), terms.ge(high - value, count - position)))
            yield terms.disjunction((*outside, between))
        if fact.ends:
            (count,), (position,) = dims_of(index, fact.tensor), atom.args
            yield terms.disjunction((terms.ge(position, 1), terms.eq(value, low)))
            yield terms.disjunction((terms.lt(position, count - 1), terms.eq(value, high - 1)))


def _room(index: IndexTerms, fact: ValueFact) -> Iterator[Formula]:
    """Distinct values need a range at least as large as their number, within that of their dtype; different end values need
    two elements."""
    low, high = index.expression(fact.low), index.expression(fact.high)
    dtype = index.function.parameter(fact.tensor).value.tensor.dtype
    dims = dims_of(index, fact.tensor)
    count = terms.ONE
    for dim in dims:
        count = count * dim
    for different in [count] * fact.distinct + dims[-1:] * fact.distinct_in_rows:
        yield terms.ge(high - low, different)
        least, largest = dtype.integer_range()
        yield terms.ge(terms.const(largest + 1 - least), different)
        yield terms.ge(high - least, different)
        yield terms.ge(terms.const(largest + 1) - low, different)
    if fact.ends:
        yield terms.disjunction((terms.ge(count, 2), terms.eq(high - low, 1)))


def _pairs(index: IndexTerms, fact: ValueFact, elements: list[Atom]) -> Iterator[Formula]:
    """Facts from the declaration about two elements at a time."""
    for left, right in list(combinations(elements, 2))[:MAX_LOADED_PAIRS]:
        if fact.sorted:
            yield _in_order(left, right)
        if fact.distinct:
            yield _distinct(dims_of(index, fact.tensor), left, right, fact.sorted)
        if fact.distinct_in_rows:
            other_rows = [terms.ne(a, b) for a, b in zip(left.args[:-1], right.args[:-1], strict=True)]
            yield terms.disjunction((*other_rows, _distinct(dims_of(index, fact.tensor), left, right, in_order=False)))


def _in_order(left: Atom, right: Atom) -> Formula:
    """The later of two elements is not smaller."""
    (first,), (second,) = left.args, right.args
    rising = terms.conjunction((terms.ge(second, first), terms.ge(terms.of(right), terms.of(left))))
    falling = terms.conjunction((terms.ge(first, second), terms.ge(terms.of(left), terms.of(right))))
    return terms.disjunction((rising, falling))


def _distinct(dims: list[Poly], left: Atom, right: Atom, in_order: bool) -> Formula:
    """Elements at different indices inside the tensor differ; if it is also sorted, by at least the distance of the indices."""
    outside = [
        formula
        for atom in (left, right)
        for index, dim in zip(atom.args, dims, strict=True)
        for formula in (terms.lt(index, 0), terms.ge(index, dim))
    ]
    same = terms.conjunction(terms.eq(a, b) for a, b in zip(left.args, right.args, strict=True))
    differ = [terms.ne(terms.of(left), terms.of(right))]
    if in_order:
        gap, steps = terms.of(right) - terms.of(left), right.args[0] - left.args[0]
        differ = [terms.conjunction((terms.ge(steps, 1), terms.ge(gap, steps)))]
        differ.append(terms.conjunction((terms.lt(steps, 0), terms.ge(steps, gap))))
    return terms.disjunction((*outside, same, *differ))
