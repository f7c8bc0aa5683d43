"""Checks that the launch contract admits some launch: otherwise every property would be vacuously true of a kernel that never
runs.

In: the translation of one kernel's launch values. Out: no diagnostic, or one that names a minimal set of contradictory
clauses. A clause is a precondition, a declared range of values, a grid extent, an extent of a tensor or a stride. A reported
contradiction is proven: no integers satisfy the clauses together. A contract with products for which neither a solution nor
a proof that there is none is found is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilec.diagnostics.diagnostic import Diagnostic, Label, Span
from tilec.ir.core import Parameter, ValueFact
from tilec.ir.expr import Expr, binary, const
from tilec.ir.packed import authored_dims, elements_at
from tilec.ir.types import MAX_DIM
from tilec.passes.analysis.ranges import GRID_LIMITS
from tilec.passes.prover import terms
from tilec.passes.prover.declared_facts import declaration
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.integer_sets import Solver
from tilec.passes.prover.nonlinear import Undecided
from tilec.passes.prover.terms import Formula, Kind, Poly


@dataclass(frozen=True, slots=True)
class Clause:
    """A condition that every launch satisfies: its text, source location and formula."""

    text: str
    span: Span | None
    formula: Formula


def prove_contract(index: IndexTerms, solver: Solver) -> Diagnostic | None:
    """E0307 with the contradictory clauses, if no launch can satisfy the contract."""
    clauses = [clause for clause in _clauses(index) if clause.formula != terms.TRUE]
    if not _contradict(solver, clauses):
        return None
    # Deleting one clause at a time leaves a minimal set. Limits that have no source location are deleted first.
    needed = sorted(clauses, key=lambda clause: (clause.span is not None, clauses.index(clause)))
    for clause in list(needed):
        subset = [other for other in needed if other is not clause]
        if subset and _contradict(solver, subset):
            needed = subset
    needed.sort(key=lambda clause: (clause.span is None, clauses.index(clause)))
    return _diagnostic(index, needed)


def _contradict(solver: Solver, clauses: list[Clause]) -> bool:
    try:
        return bool(clauses) and solver.empty([clause.formula for clause in clauses])
    except Undecided:
        return False


def _clauses(index: IndexTerms) -> Iterator[Clause]:
    function = index.function
    for precondition in function.requires:
        yield Clause(f"`{precondition.condition}`", precondition.loc, index.predicate(precondition.condition))
    for fact in function.values:
        yield from _stored(index, fact)
    for axis, extent in enumerate(index.grid):
        limit = GRID_LIMITS[axis]
        text = f"grid axis {axis} has 1 to {limit} blocks: `{function.grid[axis]}`"
        yield Clause(text, function.loc, _between(extent, limit))
    for parameter in function.parameters:
        if parameter.access is not None:
            yield from _shape(index, parameter)


def _between(size: Poly, limit: int) -> Formula:
    return terms.conjunction((terms.ge(size, 1), terms.ge(terms.const(limit), size)))


def _shape(index: IndexTerms, parameter: Parameter) -> Iterator[Clause]:
    tensor = parameter.value.tensor
    inner: Expr = const(1)
    for axis in reversed(range(tensor.rank)):
        dim = tensor.dims[axis]
        shown, most = authored_dims(tensor)[axis], MAX_DIM * elements_at(tensor, axis)
        text = f"axis {axis} of `{parameter.name}` has 1 to {most} elements: `{shown}`"
        yield Clause(text, parameter.loc, _between(index.expression(dim), MAX_DIM))
        if tensor.strides is not None:
            stride = tensor.strides[axis]
            text = f"stride {axis} of `{parameter.name}` steps over the axes inside it: `{stride} >= {inner}`"
            yield Clause(text, parameter.loc, terms.ge(index.expression(stride), index.expression(inner)))
            inner = binary("*", dim, stride)


def _stored(index: IndexTerms, fact: ValueFact) -> Iterator[Clause]:
    """Every tensor has an element, so its declared range must not be empty. Distinct values need a range at least as large as
    their number, and two different end values need two elements."""
    parameter = index.function.parameter(fact.tensor)
    tensor = parameter.value.tensor
    low, high = index.expression(fact.low), index.expression(fact.high)
    bounds = tensor.dtype.integer_range()
    element = index.atoms.make(("stored", fact.tensor), Kind.OPAQUE, fact.tensor, bounds, varies=False)
    value = terms.of(element)
    text = f"`{declaration(fact)}`"
    yield Clause(text, fact.loc, terms.conjunction((terms.ge(value, low), terms.lt(value, high))))
    dims = [index.expression(dim) for dim in tensor.dims]
    count = terms.ONE
    for dim in dims:
        count = count * dim
    if fact.ends:
        enough = terms.disjunction((terms.ge(count, 2), terms.eq(high - low, 1)))
        yield Clause(f"{text}: two elements for two ends", fact.loc, enough)
    if fact.distinct:
        room = terms.conjunction((terms.ge(high - low, count), terms.ge(terms.const(bounds[1] - bounds[0] + 1), count)))
        yield Clause(f"{text}: as many numbers as elements", fact.loc, room)
    if fact.distinct_in_rows:
        row, numbers = dims[-1], terms.const(bounds[1] - bounds[0] + 1)
        room = terms.conjunction((terms.ge(high - low, row), terms.ge(numbers, row)))
        yield Clause(f"{text}: as many numbers as elements of a row", fact.loc, room)


def _diagnostic(index: IndexTerms, needed: list[Clause]) -> Diagnostic:
    first, *others = needed
    span = first.span or index.function.loc
    is_single = not others
    label = f"{first.text} never holds" if is_single else f"{first.text} contradicts what follows"
    because = tuple(Label(clause.span, clause.text) for clause in others if clause.span is not None)
    notes = tuple(clause.text for clause in others if clause.span is None)
    return Diagnostic(
        "E0307",
        "no launch satisfies the contract" + ("" if is_single else f": {len(needed)} clauses contradict each other"),
        Label(span, label) if span is not None else None,
        because,
        notes,
        None,
        "drop or correct one of the clauses shown",
    )
