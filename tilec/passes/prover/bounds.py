"""Proves that every access stays inside its tensor, unless it is declared to be clipped at the edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tilec.diagnostics.diagnostic import Fix, Label
from tilec.ir.core import Function, Op
from tilec.ir.ops import Cast, ReadOp, Reduce, Reshape
from tilec.ir.packed import authored_dims, elements_at
from tilec.passes.prover import terms
from tilec.passes.prover.accesses import AccessSite, Axis
from tilec.passes.prover.discharge import Discharge, strongest
from tilec.passes.prover.findings import At, Complaint, Findings, loop_labels
from tilec.passes.prover.interval_runs import IntervalRun
from tilec.passes.prover.runs import operand_in
from tilec.passes.prover.terms import Atom, Formula, Poly


def prove_bounds(findings: Findings, sites: list[AccessSite]) -> None:
    """One obligation per access: for every axis, `0 <= start` and `start + extent <= dim`."""
    for site in sites:
        findings.begin(f"bounds of {site.subject}", site.location)
        if site.unsafe:
            findings.discharged("bounds", site.subject, site.op, Discharge("unsafe"))
        elif site.clipped:
            findings.discharged("bounds", site.subject, site.op, Discharge("static"))
        else:
            _prove(findings, site)


def _prove(findings: Findings, site: AccessSite) -> None:
    discharges: list[Discharge] = []
    for axis_index, axis in enumerate(site.instance.axes):
        for past_the_end in (True, False):
            end = axis.start + axis.extent
            violation = terms.lt(axis.dim, end) if past_the_end else terms.lt(axis.start, 0)
            if violation == terms.FALSE and _constant(axis):
                discharges.append(Discharge("static"))
                continue
            system = [*site.instance.holds, violation]
            known = findings.index.ranges[site.op.indices[axis_index]]
            coarse = terms.lt(axis.dim, known.high + axis.extent) if past_the_end else terms.lt(terms.const(known.low), 0)
            complain = partial(_complaint, findings, site, axis_index, past_the_end)
            discharge = findings.prove(system, complain, coarse, *_by_runs(site, axis_index, past_the_end))
            if discharge is None:
                return
            discharges.append(discharge)
    findings.discharged("bounds", site.subject, site.op, strongest(discharges))


def _by_runs(site: AccessSite, axis_index: int, past_the_end: bool) -> tuple[Callable[[IntervalRun], bool] | None, At]:
    """What to ask of runs: whether a constant bound holds, or what it takes that one of launch values does."""
    axis = site.instance.axes[axis_index]
    number = site.op.operands.index(site.op.indices[axis_index])
    if not past_the_end:
        return operand_in(site.op, number, 0, None), At(site.op, number, lambda range_: terms.lt(terms.const(range_.low), 0))
    constant = axis.dim.constant
    run = None if constant is None else operand_in(site.op, number, None, constant - axis.extent)
    return run, At(site.op, number, lambda range_: terms.lt(axis.dim, range_.high + axis.extent))


def _constant(axis: Axis) -> bool:
    return axis.start.constant is not None and axis.dim.constant is not None


def _complaint(findings: Findings, site: AccessSite, axis_index: int, past_the_end: bool) -> Complaint:
    axis = site.instance.axes[axis_index]
    indexed = site.op.indexed
    by_element = indexed and site.op.verb != "load"
    code = "E0303" if by_element else "E0302" if site.writes else "E0301"
    side = "past the end" if past_the_end else "before the start"
    verb = "write" if site.writes else "read"
    element = [a.start for a in site.instance.axes]
    if past_the_end:
        element[axis_index] = axis.start + (axis.extent - 1)
    count = _elements(site, axis_index)
    clip = "mask=True" if site.writes else f"pad={_neutral(findings.index.function, site.op)}"
    because: list[Label] = [*loop_labels(findings.index, site.op)]
    if site.parameter.loc is not None:
        because.append(
            Label(site.parameter.loc, f"axis {axis_index} of `{site.name}` has {_dim_text(site, axis_index)} elements")
        )
    return Complaint(
        code,
        f"{site.subject} may {verb} {side} of axis {axis_index}",
        site.location,
        "index outside the tensor" if indexed else f"{count} element{'s' if count > 1 else ''} on axis {axis_index}",
        tuple(because),
        _hint(findings, site, axis_index, clip),
        (site.instance,),
        site.name,
        tuple(element),
        fixes=tuple(_fixes(site, axis_index, clip)),
        tile=axis,
    )


def _elements(site: AccessSite, axis_index: int) -> int:
    """Extent of an access along an axis in the author's elements. What has an index for each element moves each alone."""
    per_index = 1 if site.op.indexed else elements_at(site.parameter.value.tensor, axis_index)
    return site.instance.axes[axis_index].extent * per_index


def _positions_text(site: AccessSite, axis_index: int) -> str:
    """Where an access of one element, or of one byte, can be along an axis."""
    return str(site.parameter.value.tensor.dims[axis_index])


def _dim_text(site: AccessSite, axis_index: int) -> str:
    return str(authored_dims(site.parameter.value.tensor)[axis_index])


def _hint(findings: Findings, site: AccessSite, axis_index: int, clip: str) -> str:
    axis, dim = site.instance.axes[axis_index], authored_dims(site.parameter.value.tensor)[axis_index]
    extent = _elements(site, axis_index)
    inside = terms.closure([Formula("eq", axis.start)])
    loaded = [atom.label for atom in _loaded(axis) if _declarable(findings, atom)]
    declared = {fact.tensor for fact in findings.index.function.values}
    if axis.start.atom is not None and loaded and axis.extent == 1 and not declared.intersection(loaded):
        return f"declare what `{loaded[0]}` holds with `values({loaded[0]}, 0, {_positions_text(site, axis_index)})`"
    if loaded and not declared.intersection(loaded):
        return (
            f"pass `{clip}`, or declare with `values({loaded[0]}, ...)` a range that keeps the index inside axis {axis_index}"
        )
    if loaded or any(atom.kind is terms.Kind.OPAQUE and atom.varies for atom in inside):
        last = f"{dim} - 1" if extent == 1 else f"{dim} - {extent}"
        where = "offset" if extent > 1 else "index"
        return f"pass `{clip}`, or clamp the {where}: `minimum(maximum(i, 0), {last})`"
    if extent > 1 and dim.constant is None:
        return f"pass `{clip}`, or state `requires({dim} % {extent} == 0)`"
    return f"pass `{clip}`, or make the range of the index fit axis {axis_index}"


def _fixes(site: AccessSite, axis_index: int, clip: str) -> Iterator[Fix]:
    """The hint as fixes that a program can apply. Clipping is a certain fix only if the tile straddles an edge, which
    `Findings.refuse` decides at the counterexample: for a tile elsewhere the index is wrong, and clipping would hide that."""
    axis, where = site.instance.axes[axis_index], site.location
    dim = authored_dims(site.parameter.value.tensor)[axis_index]
    extent = _elements(site, axis_index)
    if where is None:
        return
    loaded = _loaded(axis)
    if loaded:
        if axis.extent == 1 and axis.start in [terms.of(atom) for atom in loaded]:
            text = f"values({loaded[0].label}, 0, {_positions_text(site, axis_index)})"
            yield Fix(f"declare what `{loaded[0].label}` holds", "statement", text, where, certain=True)
        return
    yield Fix(f"pass `{clip}`", "argument", clip, where, certain=True)
    if extent > 1 and dim.constant is None:
        factor = str(dim) if str(dim).isidentifier() else f"({dim})"
        text = f"requires({factor} % {extent} == 0)"
        yield Fix(f"state `{text}`", "statement", text, where)


def _declarable(findings: Findings, atom: Atom) -> bool:
    """Whether `values` can say what an element is: of two in a byte it cannot."""
    parameter = findings.index.function.parameter(atom.label)
    return parameter.access is None or parameter.value.tensor.packed is None


def _loaded(axis: Axis) -> list[Atom]:
    """The tensor elements that determine the start of an axis."""
    inside = terms.closure([Formula("eq", axis.start)])
    return [atom for atom in inside if atom.kind is terms.Kind.LOADED and not atom.is_order and not atom.is_sum]


def _neutral(function: Function, access: Op) -> str:
    """The neutral pad value: -inf or inf if the first reduction of a load of floats is a maximum or a minimum, else 0."""
    if not isinstance(access, ReadOp) or not access.result.tile.dtype.is_float:
        return "0"
    reached = {access.result}
    for op in function.body.walk():
        if not reached.isdisjoint(op.operands):
            if isinstance(op, Reduce) and op.kind in ("max", "argmax", "min", "argmin"):
                return "-inf" if op.kind.endswith("max") else "inf"
            if isinstance(op, Cast | Reshape):
                reached.add(op.result)
    return "0"


def overlap(left: Axis, right: Axis, clipped: tuple[bool, bool]) -> list[Formula]:
    """Two accesses overlap on one axis (three intervals have a common point if each two do)."""
    found = [terms.lt(left.start, right.start + right.extent), terms.lt(right.start, left.start + left.extent)]
    for axis, clip in zip((left, right), clipped, strict=True):
        if clip:
            found += [terms.lt(axis.start, axis.dim), terms.lt(terms.ZERO, axis.start + axis.extent)]
    return found


def common_element(findings: Findings, lefts: tuple[Axis, ...], rights: tuple[Axis, ...]) -> tuple[Poly, ...]:
    """An element that two overlapping accesses share."""
    atoms = findings.index.atoms
    starts = [atoms.maximum(a.start, b.start) for a, b in zip(lefts, rights, strict=True)]
    return tuple(atoms.maximum(start, terms.ZERO) for start in starts)
