"""Proves that every read of a `Scratch` tensor follows a write of the same element by the same block."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.diagnostics.diagnostic import Label
from tilec.ir.core import Access
from tilec.passes.prover import terms
from tilec.passes.prover.accesses import AccessSite, Instance
from tilec.passes.prover.counterexample import counterexample
from tilec.passes.prover.coverage import climb, cover_of, tensor_elements
from tilec.passes.prover.covering import Cover, loaded_or_opaque, usable
from tilec.passes.prover.discharge import Discharge
from tilec.passes.prover.findings import Complaint, Findings
from tilec.passes.prover.integer_sets import evaluator
from tilec.passes.prover.nonlinear import Undecided
from tilec.passes.prover.races import common_loops, execution_coordinates, pairs_of_coordinates, within
from tilec.passes.prover.replay import replays
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
    all_known = True
    universal = set(terms.closure([*universe, *(Formula("eq", poly) for poly in points_of)]))
    for write in writes:
        for second, precedes in _earlier(findings, read, first, write):
            cover = cover_of(findings, second, elements)
            cover += [terms.eq(a, b) for a, b in zip(first.blocks, second.blocks, strict=True)]
            cover.append(precedes)
            if usable(cover, universal) and not loaded_or_opaque(cover, universal):
                covers.append(cover)
            else:
                all_known = False
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
    # A write at an unknown place may write what the read needs, and untranslated values may differ from the solution.
    runs = replays(findings.index, found, (first,)) if found is not None and all_known else ()
    run = next((one for one in runs if one.complete and not one.numbers), None)
    if found is None or run is None:
        findings.report(complaint, None)
        return
    element = tuple(terms.evaluate(e, evaluator(found)) for e in elements)
    shown = counterexample(findings.index, {**found, **run.shown}, (first,), read.name, element, run.note)
    findings.report(complaint, shown)


def _earlier(findings: Findings, read: AccessSite, first: Instance, write: AccessSite) -> Iterator[tuple[Instance, Formula]]:
    """Executions of a write by the block of a read, each with the condition that it comes first. First any execution; then
    those in the same iteration of the loops around both, which share the values that are computed outside of other loops."""
    second = write.instance.renamed(findings.index, 2, like=1)
    yield second, _before(write, second, read, first)
    common = common_loops(write.instance, read.instance)
    if common and write.position < read.position:
        same_iteration = write.instance.renamed(findings.index, 3, like=1, loops=common)
        pairs = pairs_of_coordinates(write, within(same_iteration, common), read, within(first, common))
        yield same_iteration, terms.conjunction(terms.eq(a, b) for a, b in pairs)


def _before(write: AccessSite, later: Instance, read: AccessSite, earlier: Instance) -> Formula:
    """The write precedes the read: in an earlier iteration of a common loop, or earlier in program order."""
    common = common_loops(later, earlier)
    pairs = pairs_of_coordinates(write, within(later, common), read, within(earlier, common))
    options: list[Formula] = []
    for k, (a, b) in enumerate(pairs):
        same = [terms.eq(x, y) for x, y in pairs[:k]]
        options.append(terms.conjunction((*same, terms.lt(a, b))))
    if write.position < read.position:
        options.append(terms.conjunction(terms.eq(a, b) for a, b in pairs))
    return terms.disjunction(options)
