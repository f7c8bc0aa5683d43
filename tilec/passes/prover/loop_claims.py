"""Proves what authors claim about loops: invariants, and that each `while` ends.

An invariant is shown where the loop begins and at the end of each iteration. By induction over the iterations it is true at
the start of each and after the loop, so these two are facts (`IndexTerms.given`). An obligation may use the claims executed
before it: consider the first claim or operation of an execution that breaks its obligation.

A `while` is a loop of `max(e, 0) + 1` passes, where `e` is its number before the loop. Its number is positive where the
condition is true, and falls in each pass that does not leave: so it is at most `e - k` after `k` passes, the condition is
false in the last one at the latest, and the loop ends as the `while` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilec.ir.ops import Decreases, Invariant
from tilec.passes.prover import terms
from tilec.passes.prover.findings import Complaint, Findings, loop_labels
from tilec.passes.prover.interval_runs import IntervalRun
from tilec.passes.prover.runs import is_true, operand_in
from tilec.passes.prover.terms import Formula, Poly
from tilec.passes.prover.wrap import located


def prove_loop_claims(findings: Findings) -> None:
    """One obligation for the start of a loop and one for its iterations, for each invariant and each `while`."""
    starts: dict[int, Decreases] = {}
    for op in findings.index.function.body.walk():
        if isinstance(op, Invariant) and op.point in ("entry", "end"):
            _invariant(findings, op)
        elif isinstance(op, Decreases) and op.point == "start":
            starts[op.number] = op
            _positive(findings, op)
        elif isinstance(op, Decreases):
            _falls(findings, starts[op.number], op)


def _invariant(findings: Findings, op: Invariant) -> None:
    index = findings.index
    condition = index.condition(op.operands[0])
    first = op.point == "entry"
    _prove(
        findings,
        op,
        ("invariant", "where the loop starts" if first else "after an iteration"),
        [terms.negate(condition)],
        [index.choose(condition, terms.ONE, terms.ZERO)],
        Complaint(
            "E0310",
            f"the invariant may be false {'where the loop starts' if first else 'after an iteration'}",
            op.loc,
            "must be true there",
            hint="state what it rests on in an `invariant(...)` before it, or with `requires(...)`"
            if first
            else "it must follow from the invariants and one iteration alone: state what it rests on in an `invariant(...)`",
        ),
        is_true(op),
    )


def _positive(findings: Findings, op: Decreases) -> None:
    number = findings.index.scalar(op.operands[0])
    _prove(
        findings,
        op,
        ("progress", "`while` goes on with a positive number"),
        [terms.lt(number, 1)],
        [number],
        Complaint(
            "E0309",
            "the number of a `while` may be 0 or less where a pass starts",
            op.loc,
            "must be positive there",
            hint="state a number that is positive where the condition is true: `decreases(...)` at the start of the body",
        ),
        operand_in(op, 0, 1, None),
    )


def _falls(findings: Findings, start: Decreases, op: Decreases) -> None:
    index = findings.index
    before, after = index.scalar(start.operands[0]), index.scalar(op.operands[0])
    _prove(
        findings,
        op,
        ("progress", "`while` ends"),
        [*index.runs(index.structure.frames[start]), *index.given(start, [terms.ge(after, before)]), terms.ge(after, before)],
        [after, before],
        Complaint(
            "E0309",
            "a pass of a `while` may not make its number smaller",
            op.loc,
            "must fall in each pass",
            hint="state a number that does: `decreases(...)` at the start of the body; leave other loops with `break`",
        ),
    )


def _prove(
    findings: Findings,
    op: Invariant | Decreases,
    named: tuple[str, str],
    violation: list[Formula],
    shown: list[Poly],
    complaint: Complaint,
    run: Callable[[IntervalRun], bool] | None = None,
) -> None:
    """`violation` is what the obligation excludes, `shown` are the numbers that decide it, `run` asks the same of a run."""
    property, subject = named
    findings.begin(f"{property}: {subject}", op.loc)
    instance = located(findings, op, shown, violation)
    because = (*complaint.because, *loop_labels(findings.index, op))
    found = findings.prove(instance.holds, lambda: replace(complaint, because=because, instances=(instance,)), run=run)
    if found is not None:
        findings.discharged(property, subject, op, found)
