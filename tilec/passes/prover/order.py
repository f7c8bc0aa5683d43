"""Proves that every read of a `Scratch` tensor follows a write of the same element by the same block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilec.diagnostics.diagnostic import Label
from tilec.ir.core import Access
from tilec.passes.prover import terms
from tilec.passes.prover.accesses import AccessSite, Instance
from tilec.passes.prover.counterexample import counterexample
from tilec.passes.prover.coverage import climb, cover_of, tensor_elements
from tilec.passes.prover.covering import Cover, loaded_or_opaque, usable
from tilec.passes.prover.findings import Complaint, Findings
from tilec.passes.prover.integer_sets import evaluator
from tilec.passes.prover.ladder import Discharge
from tilec.passes.prover.nonlinear import Undecided
from tilec.passes.prover.races import common_loops, execution_coordinates, within
from tilec.passes.prover.terms import Formula


def prove_order(findings: Findings, sites: list[AccessSite]) -> None:
    """One obligation per read of a `Scratch` tensor: the block has written the elements before."""
    for site in sites:
        if site.parameter.access is not Access.SCRATCH or site.writes:
            continue
        if site.unsafe:
            findings.discharged("order", site.subject, site.op, Discharge("unsafe"))
            continue
        writes = [other for other in sites if other.parameter is site.parameter and other.writes]
        _prove_read(findings, site, writes)


def _prove_read(findings: Findings, read: AccessSite, writes: list[AccessSite]) -> None:
    findings.begin(f"the order of {read.subject} and what it reads", read.location)
    elements = tensor_elements(findings, read.parameter)
    first = read.instance.renamed(findings.index, 1)
    universe: list[Formula] = list(first.holds)
    for element, axis in zip(elements, first.axes, strict=True):
        universe += [terms.ge(element, axis.start), terms.lt(element, axis.start + axis.extent), terms.lt(element, axis.dim)]
    # Blocks and loops that the read's index does not mention still distinguish executions.
    points_of = [*first.blocks, *execution_coordinates(read, first)]
    covers: list[Cover] = []
    universal = set(terms.closure([*universe, *(Formula("eq", poly) for poly in points_of)]))
    for write in writes:
        for second, precedes in _earlier(findings, read, first, write):
            cover = cover_of(findings, second, elements)
            cover += [terms.eq(a, b) for a, b in zip(first.blocks, second.blocks, strict=True)]
            cover.append(precedes)
            if usable(cover, universal) and not loaded_or_opaque(cover, universal):
                covers.append(cover)
    try:
        found = climb(findings, universe, covers, points_of)
    except Undecided:
        found = None
    if isinstance(found, Discharge):
        findings.discharged("order", read.subject, read.op, found)
        return
    because = tuple(Label(write.location, "written here") for write in writes if write.location is not None)
    complaint = Complaint(
        "E0405",
        f"{read.subject} may read an element before this block has written it",
        read.location,
        "read here",
        because,
        f"write the elements of `{read.name}` first, in the same block",
    )
    found = findings.ladder.admitted(found) if found is not None else None
    if found is None:
        findings.report(complaint, None)
        return
    element = tuple(terms.evaluate(e, evaluator(found)) for e in elements)
    findings.report(complaint, counterexample(findings.index, found, (first,), read.name, element))


def _earlier(findings: Findings, read: AccessSite, first: Instance, write: AccessSite) -> Iterator[tuple[Instance, Formula]]:
    """Executions of a write by the block of a read, each with the condition that it comes first. First any execution; then
    those in the same iteration of the loops around both, which share the values that are computed outside of other loops."""
    second = write.instance.renamed(findings.index, 2, like=1)
    yield second, _before(write, second, read, first)
    common = common_loops(write.instance, read.instance)
    if common and write.position < read.position:
        same_iteration = write.instance.renamed(findings.index, 3, like=1, loops=common)
        write_coordinates, read_coordinates = (
            execution_coordinates(write, within(same_iteration, common)),
            execution_coordinates(read, within(first, common)),
        )
        if len(write_coordinates) == len(read_coordinates):
            yield (
                same_iteration,
                terms.conjunction(terms.eq(a, b) for a, b in zip(write_coordinates, read_coordinates, strict=True)),
            )


def _before(write: AccessSite, later: Instance, read: AccessSite, earlier: Instance) -> Formula:
    """The write precedes the read: in an earlier iteration of a common loop, or earlier in program order."""
    common = 0
    for (left, _, _), (right, _, _) in zip(later.loops, earlier.loops, strict=False):
        if left is not right:
            break
        common += 1
    write_coordinates = execution_coordinates(write, replace(later, loops=later.loops[:common]))
    read_coordinates = execution_coordinates(read, replace(earlier, loops=earlier.loops[:common]))
    if len(write_coordinates) != len(read_coordinates):
        return terms.FALSE
    alternatives: list[Formula] = []
    for k, (a, b) in enumerate(zip(write_coordinates, read_coordinates, strict=True)):
        same = [terms.eq(x, y) for x, y in zip(write_coordinates[:k], read_coordinates[:k], strict=True)]
        alternatives.append(terms.conjunction((*same, terms.lt(a, b))))
    if write.position < read.position:
        alternatives.append(terms.conjunction(terms.eq(a, b) for a, b in zip(write_coordinates, read_coordinates, strict=True)))
    return terms.disjunction(alternatives)
