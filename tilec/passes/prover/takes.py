"""Proves that the indices of every `take` are positions of its axis."""

from __future__ import annotations

from tilec.diagnostics.diagnostic import Label
from tilec.ir.ops import Take
from tilec.passes.prover import terms
from tilec.passes.prover.accesses import Axis, Instance, tile_position
from tilec.passes.prover.discharge import Discharge, strongest
from tilec.passes.prover.findings import Complaint, Findings, loop_labels
from tilec.passes.prover.runs import operand_in
from tilec.passes.prover.terms import Poly
from tilec.passes.prover.wrap import located


def prove_takes(findings: Findings) -> None:
    """One obligation per `take`: for every element of the indices, `0 <= index` and `index < extent`. It holds in `unsafe`
    blocks too, which are about tensors."""
    for op in findings.index.function.body.walk():
        if isinstance(op, Take):
            findings.begin(f"bounds of {subject_of(op)}", op.loc)
            _prove(findings, op)


def subject_of(op: Take) -> str:
    """Short text, such as "take along axis 1"."""
    return f"take along axis {op.axis}"


def _prove(findings: Findings, op: Take) -> None:
    source, indices = op.operands
    positions = tuple(tile_position(findings.index, op, axis, extent) for axis, extent in enumerate(indices.tile.shape))
    instance = located(findings, op, [findings.index.element(indices, positions)])
    (axis,) = instance.axes
    extent, known = source.tile.shape[op.axis], findings.index.ranges[indices]
    discharges: list[Discharge] = []
    for past_the_end in (True, False):
        violation = terms.lt(terms.const(extent - 1), axis.start) if past_the_end else terms.lt(axis.start, 0)
        if violation == terms.FALSE:
            discharges.append(Discharge("static" if axis.start.constant is not None else "interval"))
            continue
        end = known.high if past_the_end else known.low
        coarse = terms.lt(terms.const(extent - 1), terms.const(end)) if past_the_end else terms.lt(terms.const(end), 0)
        found = findings.prove(
            [*instance.holds, violation],
            lambda e=past_the_end: _complaint(findings, op, instance, axis, positions, e),
            coarse,
            operand_in(op, 1, None if past_the_end else 0, extent - 1 if past_the_end else None),
        )
        if found is None:
            return
        discharges.append(found)
    findings.discharged("bounds", subject_of(op), op, strongest(discharges))


def _complaint(
    findings: Findings, op: Take, instance: Instance, axis: Axis, positions: tuple[Poly, ...], past_the_end: bool
) -> Complaint:
    source = op.operands[0]
    extent = source.tile.shape[op.axis]
    side = "past the end" if past_the_end else "before the start"
    because: list[Label] = [*loop_labels(findings.index, op)]
    return Complaint(
        "E0308",
        f"take may read {side} of axis {op.axis} of a tile",
        op.loc,
        f"axis {op.axis} has {extent} element{'s' if extent > 1 else ''}",
        tuple(because),
        f"bound the indices: `minimum(maximum(i, 0), {extent - 1})`, or `values(...)` if they are loaded",
        (instance,),
        source.name if source.name.isidentifier() else "x",
        (*positions[: op.axis], axis.start, *positions[op.axis + 1 :]),
    )
