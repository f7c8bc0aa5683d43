"""Proves that the blocks together write every element of each `Out` tensor.

Only writes that certainly happen count. One whose index or condition depends on memory contents is left out, unless one of
two arguments applies: `bijections`, for schedules that no linear set describes, or `segments`, for the rows between two
offsets of a sorted tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from tilec.diagnostics.diagnostic import Counterexample, Fix, Label, Span
from tilec.ir.core import Access, Op, Parameter
from tilec.ir.ops import Binary, Butterfly, Sort
from tilec.ir.packed import authored_dims, elements_at
from tilec.passes.prover import terms
from tilec.passes.prover.accesses import AccessSite, Instance
from tilec.passes.prover.bijections import over_box_cells, over_lane_cells
from tilec.passes.prover.branches import join_arms
from tilec.passes.prover.counterexample import counterexample
from tilec.passes.prover.covering import Cover, Uncertain, loaded_or_opaque, uncovered, usable
from tilec.passes.prover.discharge import Discharge, strongest
from tilec.passes.prover.findings import Complaint, Findings
from tilec.passes.prover.integer_sets import Assignment, evaluator
from tilec.passes.prover.nonlinear import Undecided
from tilec.passes.prover.segments import segments, undeclared
from tilec.passes.prover.terms import Atom, Formula, Kind, Poly
from tilec.passes.prover.uncertain_covers import PARTS, in_common_lanes, parts_of, together
from tilec.passes.prover.unwritten import unwritten_element
from tilec.passes.prover.writers import by_named_writers


def prove_coverage(findings: Findings, sites: list[AccessSite]) -> None:
    """One obligation per `Out` tensor."""
    for parameter in findings.index.function.parameters:
        if parameter.access is Access.OUT:
            prove_written_whole(findings, sites, parameter)


def prove_written_whole(findings: Findings, sites: list[AccessSite], parameter: Parameter) -> None:
    """The obligation that some write reaches every element of one tensor."""
    writes = join_arms(findings, [site for site in sites if site.parameter is parameter and site.writes])
    _prove_tensor(findings, parameter, writes)


def tensor_elements(findings: Findings, parameter: Parameter) -> list[Poly]:
    """An arbitrary element of a tensor, one unknown per axis."""
    found: list[Poly] = []
    for axis, dim in enumerate(parameter.value.tensor.dims):
        high = max(0, terms.interval(findings.index.expression(dim))[1] - 1)
        key = ("element", parameter.name, axis)
        found.append(terms.of(findings.index.atoms.make(key, Kind.POSITION, f"e{axis}", (0, high), varies=False)))
    return found


def _prove_tensor(findings: Findings, parameter: Parameter, writes: list[AccessSite]) -> None:
    findings.begin(f"coverage of `{parameter.name}`", writes[0].location if writes else parameter.loc)
    elements = tensor_elements(findings, parameter)
    dims = [findings.index.expression(dim) for dim in parameter.value.tensor.dims]
    universe = [terms.lt(e, dim) for e, dim in zip(elements, dims, strict=True)]
    covers: list[Cover] = []
    discharges: list[Discharge] = []
    incomplete = False
    uncertain_covers: list[Cover] = []
    uncertain_sites: list[AccessSite] = []
    memory_dependent: list[Cover] = []
    permutes = any(_permutes(op) for op in findings.index.deciding)
    for site in writes:
        instance, proofs = over_lane_cells(findings, site) if permutes else (site.instance, [])
        discharges += proofs
        cover = cover_of(findings, instance, elements)
        if not usable(cover, set()) or loaded_or_opaque(cover, set()):
            rewritten = over_box_cells(findings, site)
            if rewritten is None and (parts := parts_of(findings, cover, PARTS - len(covers))):
                covers += parts
                continue
            if rewritten is None:
                incomplete = True
                memory_dependent.append(cover)
                if usable(cover, set()):
                    uncertain_covers.append(in_common_lanes(findings, instance, cover))
                    uncertain_sites.append(site)
                continue
            instance, proofs = rewritten
            discharges += proofs
            cover = cover_of(findings, instance, elements)
            if not usable(cover, set()) or loaded_or_opaque(cover, set()):
                incomplete = True
                continue
        covers.append(cover)
    subject = f"`{parameter.name}`"
    op = writes[0].op if writes else None
    if memory_dependent and (segmented := _by_segment(findings, universe, elements, covers, memory_dependent)) is not None:
        findings.discharged("coverage", subject, op, strongest([segmented, *discharges]), parameter.loc)
        return
    contents = together(findings, uncertain_covers, uncertain_sites)
    try:
        found = climb(findings, universe, covers, (), contents)
    except Undecided:
        found, incomplete = None, True
        example = None
    else:
        if isinstance(found, Discharge):
            findings.discharged("coverage", subject, op, strongest([found, *discharges]), parameter.loc)
            return
        example = found
    if incomplete and (named := _by_named_writers(findings, universe, elements, writes)) is not None:
        findings.discharged("coverage", subject, op, named, parameter.loc)
        return
    if any(site.unsafe for site in writes):
        findings.discharged("coverage", subject, op, Discharge("unsafe"), parameter.loc)
        return
    shown = _shown(findings, parameter, elements, example) if not incomplete else None
    # What some writes reach may not be known, or what memory holds: a launch that is run shows it.
    shown = shown or unwritten_element(findings, parameter.name, example)
    if shown is None and incomplete:
        shown = _shown(findings, parameter, elements, _at_small_sizes(findings, universe, writes, elements))
    findings.report(_complaint(findings, parameter, writes), shown)


def _permutes(op: Op) -> bool:
    return isinstance(op, Butterfly | Sort) or (isinstance(op, Binary) and op.kind == "xor")


def _by_segment(
    findings: Findings, universe: list[Formula], elements: list[Poly], covers: list[Cover], memory_dependent: list[Cover]
) -> Discharge | None:
    """A proof that every element is covered by the block of its segment of a sorted tensor."""
    for segment in segments(findings, universe, elements, memory_dependent):
        known = set(terms.closure(segment.holds))
        named = [cover for cover in memory_dependent if usable(cover, known) and not loaded_or_opaque(cover, known)]
        with suppress(Undecided):
            found = climb(findings, [*universe, *segment.holds], [*covers, *named]) if named else None
            if isinstance(found, Discharge):
                return strongest((segment.proof, found))
    return None


def _by_named_writers(
    findings: Findings, universe: list[Formula], elements: list[Poly], writes: list[AccessSite]
) -> Discharge | None:
    covers = [(site.instance, cover_of(findings, site.instance, elements)) for site in writes if not site.unsafe]
    return by_named_writers(findings.ladder, universe, elements, covers)


def _is_host_unknown(findings: Findings, atom: Atom) -> bool:
    return atom.kind is Kind.OPAQUE and not atom.varies and atom not in findings.index.sources


def climb(
    findings: Findings,
    universe: list[Formula],
    covers: list[Cover],
    points_of: Sequence[Poly] = (),
    uncertain: Uncertain | None = None,
) -> Discharge | Assignment:
    """Discharge coverage of `universe` by `covers` on the lowest rung possible; otherwise an uncovered element of the last
    rung."""
    solver, ladder = findings.ladder.solver, findings.ladder
    everything = [*universe, *(formula for cover in covers for formula in cover)]
    solver.texts.clear()
    grid = ladder.grid_limits(everything)
    with suppress(Undecided):
        if uncovered(solver, [*universe, *grid], covers, points_of, None, uncertain) is None:
            return Discharge("set", (), tuple(solver.texts[-1:]))
    facts = ladder.preconditions(everything)
    whole = [*universe, *grid, *(formula for _, formula in facts)]
    found = uncovered(solver, whole, covers, points_of, _is_size, uncertain)
    if found is not None and (extents := ladder.extents(everything)):
        with suppress(Undecided):
            facts = extents
            found = uncovered(solver, [*whole, *(formula for _, formula in facts)], covers, points_of, _is_size, uncertain)
    if found is None:
        return Discharge("launch", tuple(dict.fromkeys(text for text, _ in facts)), tuple(solver.texts[-1:]))
    return found


def _is_size(atom: Atom) -> bool:
    return atom.kind is Kind.SYMBOL


def cover_of(findings: Findings, instance: Instance, elements: list[Poly]) -> Cover:
    """The elements that an instance writes. Blocks exist only if every extent of the grid is positive."""
    cover = [terms.ge(extent, 1) for extent in findings.index.grid]
    cover += instance.runs
    for element, axis in zip(elements, instance.axes, strict=True):
        cover += [terms.ge(element, axis.start), terms.lt(element, axis.start + axis.extent)]
    return cover


def _at_small_sizes(
    findings: Findings, universe: list[Formula], writes: list[AccessSite], elements: list[Poly]
) -> Assignment | None:
    """An unwritten element at some sizes from a fixed sequence: with fixed sizes, products of a size and an unknown are
    linear."""
    atoms, ladder = findings.index.atoms, findings.ladder
    covers = [cover_of(findings, site.instance, elements) for site in writes]
    everything = [*universe, *(formula for cover in covers for formula in cover)]
    facts = [*ladder.grid_limits(everything), *(formula for _, formula in ladder.preconditions(everything))]
    symbols = [atom for atom in terms.closure([*everything, *facts]) if atom.kind is Kind.SYMBOL]
    for sizes in ladder.small_sizes(symbols, everything):
        mapping = {atom: terms.const(size) for atom, size in sizes.items()}
        for atom in terms.closure(everything):
            if atom.kind in (Kind.BLOCK, Kind.COORDINATE):
                mapping[atom] = _with_extent(findings, atom, atoms.substitute(atom.args[0], mapping))
        fixed = [[atoms.substitute_in(formula, mapping) for formula in cover] for cover in covers]
        given = [atoms.substitute_in(formula, mapping) for formula in [*universe, *facts]]
        if terms.conjunction(given) == terms.FALSE:
            continue
        known = [cover for cover in fixed if terms.conjunction(cover) != terms.FALSE]
        if not all(usable(cover, set()) and not loaded_or_opaque(cover, set()) for cover in known):
            continue
        try:
            found = uncovered(ladder.solver, given, known)
        except Undecided:
            continue
        if found is not None:
            return {**found, **sizes}
    return None


def _with_extent(findings: Findings, atom: Atom, extent: Poly) -> Poly:
    high = max(0, terms.interval(extent)[1] - 1)
    key = (atom, extent)
    return terms.of(findings.index.atoms.make(key, atom.kind, atom.name, (0, high), args=(extent,), level=atom.level))


def _shown(findings: Findings, parameter: Parameter, elements: list[Poly], example: Assignment | None) -> Counterexample | None:
    """The launch of an example, if the contract admits it."""
    if example is not None and any(_is_host_unknown(findings, atom) for atom in example):
        return None  # a host quotient whose divisor may not be positive: the example may give it a wrong value
    example = findings.ladder.admitted(example) if example is not None else None
    if example is None:
        return None
    element = tuple(terms.evaluate(e, evaluator(example)) for e in elements)
    return counterexample(findings.index, example, (), parameter.name, element, "is written by no block")


def _complaint(findings: Findings, parameter: Parameter, writes: list[AccessSite]) -> Complaint:
    name = parameter.name
    location = writes[0].location if writes else parameter.loc
    because = (Label(parameter.loc, "every element must be written"),) if parameter.loc is not None and writes else ()
    message = f"`{name}` may be left partly unwritten" if writes else f"`{name}` is never written"
    otherwise = (
        "declare it `InOut`" if parameter.access is Access.OUT else f"state with `values({name}, ...)` what it held before"
    )
    hint = f"make the grid and the stores reach every element of `{name}`, or {otherwise}"
    fact = undeclared(findings, [site.instance for site in writes])
    if fact is not None:
        stated = f"values({fact.tensor}, {fact.low}, {fact.high}, sorted=True, ends=True)"
        hint = f"where the segments between elements of `{fact.tensor}` leave no gap, say so: `{stated}`"
    # If the index of the write is an error too, the write is meant for other elements, and bounding the tensor is no fix.
    misplaced = any(
        diagnostic.primary is not None and diagnostic.primary.span == location for diagnostic in findings.diagnostics
    )
    fixes = tuple(_bounded(parameter, writes, location)) if location is not None and not misplaced else ()
    return Complaint("E0403", message, location, "not all elements are written", because, hint, fixes=fixes)


def _bounded(parameter: Parameter, writes: list[AccessSite], location: Span) -> Iterator[Fix]:
    """Clauses for axes on which the only write has the same tile in all blocks: they state that the tensor has no elements past
    it."""
    tensor = parameter.value.tensor
    axes = enumerate(writes[0].instance.axes) if len(writes) == 1 else ()
    for dim, (number, axis) in zip(authored_dims(tensor), axes, strict=False):
        if axis.start == terms.ZERO and dim.constant is None:
            text = f"requires({dim} <= {axis.extent * elements_at(tensor, number)})"
            yield Fix(f"state `{text}`", "statement", text, location, certain=True)
