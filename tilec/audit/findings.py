"""Findings of the audit about obligations, and their derivation from z3's results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Final

from tilec.audit import smt
from tilec.audit.program import Program
from tilec.audit.scene import Query
from tilec.audit.smt import Budget, SolverResult, Term
from tilec.audit.values import Execution
from tilec.ir.core import Op
from tilec.ir.ops import For

CONFIRMED: Final = "confirmed"
UNKNOWN: Final = "unknown"
REFUTED: Final = "refuted"
TRUSTED: Final = "trusted"
_RANK: Final = {CONFIRMED: 0, TRUSTED: 1, UNKNOWN: 2, REFUTED: 3}


@dataclass(frozen=True, slots=True)
class Finding:
    """One obligation: `property` and `subject` as in the manifest; `verdict` is confirmed, unknown, refuted, or trusted
    (inside an `unsafe` block); `reason` explains a verdict other than confirmed; `model` are the launch values, ids and
    elements of a counterexample."""

    property: str
    subject: str
    verdict: str
    reason: str = ""
    model: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one check, before it is attributed to an obligation."""

    verdict: str
    reason: str = ""
    model: dict[str, int] = field(default_factory=dict[str, int])

    def named(self, property: str, subject: str) -> Finding:
        """The finding of an obligation with this verdict."""
        return Finding(property, subject, self.verdict, self.reason, self.model)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of a conjunction of parts; stops at the first refutation."""
    found = Verdict(CONFIRMED)
    for verdict in verdicts:
        if _RANK[verdict.verdict] > _RANK[found.verdict]:
            found = verdict
        if found.verdict == REFUTED:
            break
    return found


def never(query: Query, violation: list[Term], budget: Budget) -> Verdict:
    """Confirmed if the violation cannot happen; a model refutes, unless it involves approximated values."""
    return conclude(query, query.check(violation, budget), violation)


def conclude(query: Query, result: SolverResult, violation: list[Term]) -> Verdict:
    """The verdict for z3's result for a violation."""
    if result.verdict == "none":
        return Verdict(CONFIRMED)
    if result.verdict == "undecided":
        return Verdict(UNKNOWN, result.reason)
    model = {name: value for name, value in result.model.items() if ".q" not in name and ".r" not in name}
    involved = query.universal.defined_by(smt.mentioned(violation))
    of_sorts = query.sorted_positions(involved)  # what a sort takes is no arbitrary element, whatever a tensor holds
    approximated = sorted({query.approximated[name] for name in involved | of_sorts if name in query.approximated})
    if approximated:
        return Verdict(UNKNOWN, f"there may be a counterexample; values known by bounds only: {', '.join(approximated)}", model)
    return Verdict(REFUTED, "a launch goes wrong", model)


def executions(query: Query, name: str, op: Op) -> Iterator[Execution]:
    """Executions of `op` that together represent all: a block, and an iteration of every enclosing loop."""
    program: Program = query.program
    blocks: list[Term] = []
    for axis, extent in enumerate(program.contract.grid):
        blocks.append(smt.integer(0) if extent.constant == 1 else smt.unknown(f"{name}.block{axis}"))
    choices: list[list[Term | int]] = []
    loops = program.loops_around(op)
    for depth, loop in enumerate(loops):
        iterations = program.iterations(loop) if loop in program.unrolled else None
        choices.append([smt.unknown(f"{name}.turn{depth}")] if iterations is None else list(range(iterations)))
    for chosen in product(*choices):
        yield Execution(query, name, blocks, dict(zip(loops, chosen, strict=True)))


def positions(query: Query, name: str, shape: tuple[int, ...]) -> tuple[Term, ...]:
    """An arbitrary position in a tile of this shape."""
    found: list[Term] = []
    for axis, extent in enumerate(shape):
        if extent == 1:
            found.append(smt.integer(0))
            continue
        at = smt.unknown(f"{name}.at{axis}")
        query.facts += [at >= 0, at < extent]
        found.append(at)
    return tuple(found)


def single(program: Program, op: Op) -> Iterator[tuple[Query, Execution]]:
    """One query per way to execute `op`, with that execution."""
    first = Query(program)
    for number, execution in enumerate(executions(first, "b", op)):
        if number == 0:
            yield first, execution
        else:
            query = Query(program)
            yield query, Execution(query, "b", execution.blocks, execution.iterations)


def pairs(program: Program, left: Op, right: Op) -> Iterator[tuple[Query, Execution, Execution]]:
    """One query per pair of executions of two operations, by any two blocks at any iterations."""
    probe = Query(program)
    for first in executions(probe, "b", left):
        for second in executions(probe, "c", right):
            query = Query(program)
            yield (
                query,
                Execution(query, "b", first.blocks, first.iterations),
                Execution(query, "c", second.blocks, second.iterations),
            )


def iteration_pairs(first: Execution, second: Execution, loops: Iterable[For]) -> list[tuple[Term, Term]]:
    """The iterations of two executions in each of these loops, as pairs of terms."""

    def term(iteration: Term | int) -> Term:
        return smt.integer(iteration) if isinstance(iteration, int) else iteration

    return [(term(first.iterations[loop]), term(second.iterations[loop])) for loop in loops]
