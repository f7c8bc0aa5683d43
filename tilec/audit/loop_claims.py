"""Claims of loops: invariants hold where a loop starts and after each iteration, and the number of a `while` falls.

An invariant that is shown is true whenever it is executed, by induction over the execution, and `Execution.known` has it. Its
proof may use the claims before it. If one is not confirmed, none of them is known (`tilec.audit.prove`).
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.audit import smt
from tilec.audit.findings import Finding, Verdict, never, single, worst
from tilec.audit.program import Program
from tilec.audit.smt import Budget
from tilec.ir.ops import Decreases, Invariant

INVARIANT = "invariant"


def loop_claims(program: Program, budget: Budget) -> Iterator[Finding]:
    """Two findings for each invariant, and two for each `while`."""
    starts: dict[int, Decreases] = {}
    for op in program.order:
        if isinstance(op, Invariant) and op.point in ("entry", "end"):
            subject = "where the loop starts" if op.point == "entry" else "after an iteration"
            yield _true(program, op, budget).named(INVARIANT, subject)
        elif isinstance(op, Decreases) and op.point == "start":
            starts[op.number] = op
            yield _positive(program, op, budget).named("progress", "`while` goes on with a positive number")
        elif isinstance(op, Decreases):
            yield _falls(program, starts[op.number], op, budget).named("progress", "`while` ends")


def _true(program: Program, op: Invariant, budget: Budget) -> Verdict:
    def parts() -> Iterator[Verdict]:
        for query, execution in single(program, op):
            yield never(query, [*execution.known(op), smt.negate(execution.element(op.operands[0]))], budget)

    return worst(parts())


def _positive(program: Program, op: Decreases, budget: Budget) -> Verdict:
    def parts() -> Iterator[Verdict]:
        for query, execution in single(program, op):
            yield never(query, [*execution.known(op), execution.element(op.operands[0]) < 1], budget)

    return worst(parts())


def _falls(program: Program, start: Decreases, op: Decreases, budget: Budget) -> Verdict:
    def parts() -> Iterator[Verdict]:
        for query, execution in single(program, op):
            before, after = (execution.element(one.operands[0]) for one in (start, op))
            yield never(query, [*execution.known(op), *execution.known(start), after >= before], budget)

    return worst(parts())
