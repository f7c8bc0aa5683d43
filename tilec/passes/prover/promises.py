"""Proves that every integer that a kernel stores in a tensor satisfies the tensor's promise (`ensures`).

Every store to the tensor is checked, so it does not matter which of several is last. Coverage shows that an `Out` tensor is
written completely. An `InOut` tensor may have elements that no store reaches: either these satisfy the promise before the
launch (`values` says so, or the promise is of a growth that may be 0), or coverage is proven of it too.

A load of an `InOut` tensor that precedes every store to it reads the contents before the launch: other blocks do not write
what this one reads, which the race proof shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from tilec.diagnostics.diagnostic import Label
from tilec.ir.core import Access, Op, Promise
from tilec.ir.ops import For
from tilec.passes.prover import terms
from tilec.passes.prover.accesses import AccessSite, Instance, tile_position
from tilec.passes.prover.coverage import prove_written_whole
from tilec.passes.prover.discharge import Discharge, strongest
from tilec.passes.prover.findings import Complaint, Findings, loop_labels
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.ladder import Ladder
from tilec.passes.prover.terms import Formula, Poly
from tilec.passes.prover.wrap import located, prove_operations

WORDS: Final = {"distinct": "distinct", "distinct_in_rows": "distinct in each row", "sorted": "sorted"}
BROKEN: Final = {
    "distinct": "two equal integers",
    "distinct_in_rows": "two equal integers in a row",
    "sorted": "a smaller integer after a greater one",
}
APART: Final = (
    "store what each position alone has, such as `keys % N` of sorted keys `v * N + arange(N)`, or weaken the promise"
)


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """One store of a kernel to a tensor of `dims`. The axes of `instance` are the integer minus the sum of the `above`
    elements, the integer itself, and the index of the element; `holds` also states that the element is inside the tensor."""

    site: AccessSite
    instance: Instance
    dims: tuple[Poly, ...]

    @property
    def share(self) -> Poly:
        return self.instance.axes[0].start

    @property
    def integer(self) -> Poly:
        return self.instance.axes[1].start

    @property
    def element(self) -> tuple[Poly, ...]:
        return tuple(axis.start for axis in self.instance.axes[2:])

    @property
    def holds(self) -> list[Formula]:
        """Everything that is true when the element is written."""
        inside = [f for e, dim in zip(self.element, self.dims, strict=True) for f in (terms.ge(e), terms.lt(e, dim))]
        return [*self.instance.holds, *inside]

    def renamed(self, index: IndexTerms, copy: int) -> Stored:
        """The same store with fresh unknowns."""
        return Stored(self.site, self.instance.renamed(index, copy), self.dims)


def prove_promises(findings: Findings, sites: list[AccessSite]) -> None:
    """An obligation per promise and store to its tensor, and those of the arithmetic that computes the stored integers."""
    function = findings.index.function
    if not function.promises:
        return
    promised = {promise.tensor for promise in function.promises}
    writes = [site for site in sites if site.writes and site.name in promised]
    stored = tuple(site.op.tile for site in writes)
    index = IndexTerms(function, stored=stored, first_reads=_first_reads(findings.index, sites))
    ladder = Ladder(index, findings.ladder.solver)
    own = Findings(index, ladder, findings.obligations, findings.diagnostics, findings.by_op)
    known = set(findings.index.deciding)
    prove_operations(own, (op for op in index.deciding if op not in known))
    covered: set[str] = set()
    for promise in function.promises:
        _prove(own, promise, [site for site in writes if site.name == promise.tensor])
        if promise.tensor not in covered and not _holds_unwritten(own, promise):
            covered.add(promise.tensor)
            prove_written_whole(findings, sites, function.parameter(promise.tensor))


def _first_reads(index: IndexTerms, sites: list[AccessSite]) -> frozenset[Op]:
    """Loads of `InOut` tensors that no store to the tensor precedes in their block."""
    found: set[Op] = set()
    for read in sites:
        if read.writes or read.parameter.access is not Access.INOUT:
            continue
        writes = [site for site in sites if site.writes and site.parameter is read.parameter]
        loops = {frame.op for frame in index.structure.frames[read.op] if isinstance(frame.op, For)}
        before = any(
            site.unsafe or site.position < read.position or any(frame.op in loops for frame in index.structure.frames[site.op])
            for site in writes
        )
        if not before:
            found.add(read.op)
    return frozenset(found)


def _prove(findings: Findings, promise: Promise, writes: list[AccessSite]) -> None:
    """Each store is in the promised range, and each pair of stores satisfies `distinct` and `sorted`."""
    index = findings.index
    low, high = index.expression(promise.low), index.expression(promise.high)
    stored = [_stored(findings, promise, site) for site in writes]
    for store in stored:
        findings.begin(f"what {store.site.subject} leaves", store.site.location)
        known = index.ranges[store.site.op.tile]
        below, past = terms.lt(store.share, low), terms.ge(store.share, high)
        coarse = (None, None)
        if not promise.above:
            coarse = terms.lt(terms.const(known.low), low), terms.ge(terms.const(known.high), high)
        discharges, before = list[Discharge](), len(findings.diagnostics)
        for violation, coarse_violation, side in zip((below, past), coarse, ("less", "more"), strict=True):
            found = findings.prove(
                [*store.holds, violation],
                lambda store=store, side=side: _out_of_range(findings, promise, store, side),
                coarse_violation,
            )
            if found is not None:
                discharges.append(found)
            elif any(one.counterexample is not None for one in findings.diagnostics[before:]):
                findings.diagnostics[before:] = findings.diagnostics[-1:]  # rather than what is undecided on the other side
                return
        if len(discharges) < 2:
            return
        findings.discharged("values", f"{store.site.subject} within `{text(promise)}`", store.site.op, strongest(discharges))
    for relation, violation_of in _relations(promise):
        for position, left in enumerate(stored):
            for right in stored if relation == "sorted" else stored[position:]:
                first, second = left.renamed(index, 1), right.renamed(index, 2)
                findings.begin(f"whether {left.site.subject} leaves integers that are {WORDS[relation]}", left.site.location)
                found = findings.prove(
                    [*first.holds, *second.holds, *violation_of(first, second)],
                    lambda a=first, b=second, relation=relation: _relation_violated(findings, promise, a, b, relation),
                )
                if found is None:
                    return
                findings.discharged("values", f"{left.site.subject}, {WORDS[relation]}", left.site.op, found)


def text(promise: Promise) -> str:
    """The promise as its author wrote it."""
    names = ", ".join(promise.above)
    above = f", above={names if len(promise.above) == 1 else f'({names})'}" if promise.above else ""
    relations = "".join(f", {name}=True" for name in promise.flags)
    return f"ensures({promise.tensor}, {promise.low}, {promise.high}{above}{relations})"


def _stored(findings: Findings, promise: Promise, site: AccessSite) -> Stored:
    """A store of an arbitrary element of its tile."""
    index, op, tile = findings.index, site.op, site.op.tile
    positions = tuple(tile_position(index, op, axis, extent) for axis, extent in enumerate(tile.tile.shape))
    if op.indexed:
        element = [index.element(value, positions) for value in op.indices]
    else:
        element = [index.scalar(value) + p for value, p in zip(op.indices, positions, strict=True)]
    integer = index.element(tile, positions)
    instance = located(findings, op, [integer - _sum_before_launch(index, promise, tuple(element)), integer, *element])
    return Stored(site, instance, tuple(index.expression(dim) for dim in op.tensor.tensor.dims))


def _sum_before_launch(index: IndexTerms, promise: Promise, element: tuple[Poly, ...]) -> Poly:
    """Sum of the elements of the `above` tensors before the launch."""
    total = terms.ZERO
    for name in promise.above:
        bounds = index.function.parameter(name).value.tensor.dtype.integer_range()
        total = total + terms.of(index.atoms.loaded(name, element, bounds))
    return total


def _relations(promise: Promise) -> Iterator[tuple[str, Callable[[Stored, Stored], list[Formula]]]]:
    """The promised relations between two elements, and the formulas under which two stores violate each."""
    if promise.distinct:
        yield (
            "distinct",
            lambda a, b: [
                terms.disjunction(terms.ne(x, y) for x, y in zip(a.element, b.element, strict=True)),
                terms.eq(a.integer, b.integer),
            ],
        )
    if promise.distinct_in_rows:
        yield (
            "distinct_in_rows",
            lambda a, b: [
                *(terms.eq(x, y) for x, y in zip(a.element[:-1], b.element[:-1], strict=True)),
                terms.ne(a.element[-1], b.element[-1]),
                terms.eq(a.integer, b.integer),
            ],
        )
    if promise.sorted:
        yield "sorted", lambda a, b: [terms.lt(a.element[0], b.element[0]), terms.lt(b.integer, a.integer)]


def _holds_unwritten(findings: Findings, promise: Promise) -> bool:
    """Whether elements that no store reaches satisfy the promise. An `Out` tensor has none."""
    function, index = findings.index.function, findings.index
    if function.parameter(promise.tensor).access is Access.OUT:
        return True
    if promise.flags:
        return False
    low, high = index.expression(promise.low), index.expression(promise.high)
    if promise.above:
        ranges_before_launch = [(terms.ZERO, terms.ONE)] if promise.above == (promise.tensor,) else []
    else:
        ranges_before_launch = [
            (index.expression(fact.low), index.expression(fact.high))
            for fact in function.values
            if fact.tensor == promise.tensor
        ]
    return any(
        isinstance(
            findings.ladder.discharge([terms.disjunction((terms.lt(low_before, low), terms.lt(high, high_before)))]), Discharge
        )
        for low_before, high_before in ranges_before_launch
    )


def _out_of_range(findings: Findings, promise: Promise, store: Stored, side: str) -> Complaint:
    range_text = "below its range" if side == "less" else "at the end of its range or past it"
    return _complaint(findings, promise, store, f"{store.site.subject} may leave an integer {range_text}", (store.instance,))


def _relation_violated(findings: Findings, promise: Promise, first: Stored, second: Stored, relation: str) -> Complaint:
    message = f"{first.site.subject} may leave {BROKEN[relation]}"
    found = _complaint(findings, promise, first, message, (first.instance, second.instance))
    return found if relation != "distinct_in_rows" else replace(found, hint=APART)


def _complaint(findings: Findings, promise: Promise, store: Stored, message: str, instances: tuple[Instance, ...]) -> Complaint:
    because = (Label(promise.loc, f"`{text(promise)}` is promised"),) if promise.loc is not None else ()
    return Complaint(
        "E0406",
        message,
        store.site.location,
        "stored here",
        (*because, *loop_labels(findings.index, store.site.op)),
        "clamp what is stored, such as `where((v >= 0) & (v < N), v, 0)`, or weaken the promise",
        instances,
        store.site.name,
        store.element,
    )
