"""Every element of each `Out` is written, and a block writes its own scratch or output elements before it reads them.

Both properties state that for every element there is a write. `witness` solves for the write as a function of the element,
and the solution is substituted into all its conditions: the block is in the grid, iterations are in their loops, branches are
taken, quotients satisfy their definitions, and the box contains the element. Data may have any values that the contract
allows: values that a witness reads stay unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, product

from tilec.audit import smt
from tilec.audit.definitions import Definitions
from tilec.audit.findings import CONFIRMED, TRUSTED, UNKNOWN, Finding, Verdict, positions, single, worst
from tilec.audit.positions import box, tile_shape
from tilec.audit.program import Program, writes
from tilec.audit.scene import Query
from tilec.audit.smt import Budget, Term
from tilec.audit.values import Execution
from tilec.audit.witness import Unknowns, applied, candidates
from tilec.ir.core import Access, Parameter
from tilec.ir.ops import For, Meet, MemoryOp

ATTEMPTS = 24
"""Maximum number of combinations of witnesses tried for one obligation."""
UNFOUND = "no block, iteration and position that write every element were found"


@dataclass(slots=True)
class Writer:
    """A write to find: its conditions and its unknowns."""

    execution: Execution
    goals: list[Term]
    unknowns: Unknowns


Make = Callable[[Query], list[Writer]]
"""Adds the facts of a question to a query; returns the writers that may satisfy it."""


def coverage(program: Program, budget: Budget) -> Iterator[Finding]:
    """One finding per `Out` tensor."""
    for parameter in program.function.parameters:
        if parameter.access is Access.OUT:
            yield covered(program, parameter, budget)


def covered(program: Program, parameter: Parameter, budget: Budget) -> Finding:
    """Whether every element of a tensor is written."""
    accesses = [op for op in program.accesses() if program.parameter(op) is parameter and writes(op)]
    verdict = _covered(program, [op for op in accesses if op.unsafe is None], parameter.name, budget)
    if verdict.verdict != CONFIRMED and any(op.unsafe is not None for op in accesses):
        verdict = Verdict(TRUSTED, "inside an `unsafe` block")
    return verdict.named("coverage", f"`{parameter.name}`")


def _covered(program: Program, accesses: list[MemoryOp], tensor: str, budget: Budget) -> Verdict:
    groups = [[op] for op in accesses] + ([accesses] if len(accesses) > 1 else [])
    verdict = Verdict(UNKNOWN, UNFOUND)
    for group in groups:

        def make(query: Query, chosen: list[MemoryOp] = group) -> list[Writer]:
            element = _element(query, tensor)
            return [_writer(query, op, f"w{k}", element, _blocks(program, f"w{k}"), {}) for k, op in enumerate(chosen)]

        verdict = _exists(program, make, budget)
        if verdict.verdict == CONFIRMED:
            break
    return verdict


def _element(query: Query, tensor: str) -> tuple[Term, ...]:
    """An arbitrary element of a tensor."""
    dims = [query.expression(dim) for dim in query.program.function.parameter(tensor).value.tensor.dims]
    element = tuple(smt.unknown(f"element{axis}") for axis in range(len(dims)))
    for index, dim in zip(element, dims, strict=True):
        query.facts += [index >= 0, index < dim]
    return element


def _blocks(program: Program, name: str) -> list[Term]:
    return [
        smt.integer(0) if extent.constant == 1 else smt.unknown(f"{name}.block{axis}")
        for axis, extent in enumerate(program.contract.grid)
    ]


def _writer(
    query: Query, op: MemoryOp, name: str, element: tuple[Term, ...], blocks: list[Term], fixed: dict[For, Term | int]
) -> Writer:
    """A write of `element` by `op`; iterations in `fixed` are given, the others unknown."""
    program = query.program
    definitions = Definitions(f"{name}.d", outer=query.universal)
    iterations: dict[For, Term | int] = {}
    for depth, loop in enumerate(program.loops_around(op)):
        iterations[loop] = fixed[loop] if loop in fixed else smt.unknown(f"{name}.turn{depth}")
    execution = Execution(query, name, blocks, iterations, definitions)
    shape = tile_shape(op)
    tile_position = [
        smt.integer(0) if box(op) is not None or e == 1 else smt.unknown(f"{name}.at{k}") for k, e in enumerate(shape)
    ]
    element_index = execution.element_index(op, tuple(tile_position))
    goals = execution.path_conditions(op)
    if box(op) is None:
        goals += [smt.compare("eq", index, coordinate) for index, coordinate in zip(element_index, element, strict=True)]
        goals += [smt.every([at >= 0, at < extent]) for at, extent in zip(tile_position, shape, strict=True)]
    else:
        for start, coordinate, extent in zip(element_index, element, shape, strict=True):
            goals += [smt.compare("le", start, coordinate), smt.compare("lt", coordinate, smt.add(start, smt.integer(extent)))]
    goals += definitions.facts
    terms = [
        t for t in (*blocks, *iterations.values(), *tile_position) if not isinstance(t, int) and str(t).startswith(f"{name}.")
    ]
    defaults = {str(term): smt.integer(0) for term in terms}
    for quotient, rest, _, _ in definitions.known.values():
        terms += [term for term in (quotient, rest) if str(term).startswith(definitions.prefix)]
    unknowns = Unknowns(
        {str(term): term for term in terms}, list(zip(element_index, element, strict=True)), definitions, defaults
    )
    return Writer(execution, goals, unknowns)


def _exists(program: Program, make: Make, budget: Budget) -> Verdict:
    """Whether, for every element, one of the writers of `make` exists."""
    verdict = Verdict(UNKNOWN, UNFOUND)
    probe = Query(program)
    counts = [len(list(candidates(writer.unknowns, Definitions("n")))) for writer in make(probe)]
    if not counts or not all(counts):
        return verdict
    for choice in islice(product(*(range(count) for count in counts)), ATTEMPTS):
        if budget.exhausted():
            return Verdict(UNKNOWN, budget.reason_exhausted())
        query = Query(program)
        writers = make(query)
        solutions = [
            next(islice(candidates(writer.unknowns, query.universal), number, None))
            for writer, number in zip(writers, choice, strict=True)
        ]
        verdict = _holds(query, writers, solutions, budget)
        if verdict.verdict == CONFIRMED:
            break
    return verdict


def _holds(query: Query, writers: list[Writer], solutions: list[dict[str, Term]], budget: Budget) -> Verdict:
    """Whether the solutions satisfy all conditions of one of the writers."""

    def substituted(term: Term) -> Term:
        for writer, solution in zip(writers, solutions, strict=True):
            term = applied(term, writer.unknowns, solution)
        return term

    for writer in writers:
        query.facts += [substituted(fact) for fact in writer.execution.own_facts]
        query.universal.splits += [(substituted(term), low, high) for term, low, high in writer.unknowns.definitions.splits]
    goals = [[substituted(goal) for goal in writer.goals] for writer in writers]
    if len(goals) == 1:
        return worst(_shown(query, goal, budget) for goal in goals[0])
    return _shown(query, smt.some(smt.every(goal) for goal in goals), budget)


def _shown(query: Query, goal: Term, budget: Budget) -> Verdict:
    result = query.check([smt.negate(goal)], budget)
    if result.verdict == "none":
        return Verdict(CONFIRMED)
    return Verdict(UNKNOWN, result.reason or UNFOUND)


# Reads after writes


def order(program: Program, budget: Budget) -> Iterator[Finding]:
    """One finding per read of a `Scratch` or `Out` tensor: the block has written the elements before. One per read of a `Peer`
    tensor: the block has met those of the other ranks before."""
    for op in program.accesses():
        parameter = program.parameter(op)
        if parameter.access is Access.PEER:
            yield _met_before(program, op)
            continue
        if writes(op) or parameter.access not in (Access.SCRATCH, Access.OUT):
            continue
        subject = program.subject(op)
        if op.unsafe is not None:
            yield Finding("order", subject, TRUSTED, "inside an `unsafe` block")
            continue
        accesses = [other for other in program.accesses() if program.parameter(other) is parameter and writes(other)]
        yield _written_before(program, op, [site for site in accesses if site.unsafe is None], budget).named("order", subject)


def _met_before(program: Program, read: MemoryOp) -> Finding:
    """A meet of the kernel's body, which every block executes, comes earlier in the text."""
    subject = program.subject(read)
    if read.unsafe is not None:
        return Finding("order", subject, TRUSTED, "inside an `unsafe` block")
    if any(isinstance(op, Meet) and program.order[op] < program.order[read] for op in program.function.body.ops):
        return Finding("order", subject, CONFIRMED, "")
    return Finding("order", subject, UNKNOWN, "no meet comes before it in every block")


def _written_before(program: Program, read: MemoryOp, accesses: list[MemoryOp], budget: Budget) -> Verdict:
    verdict = Verdict(UNKNOWN, "no earlier write was found")
    if any(loop in program.unrolled for loop in program.loops_around(read)):
        return Verdict(UNKNOWN, "the read is in a loop that is analysed iteration by iteration")
    for site in accesses:
        common = [a for a, b in zip(program.loops_around(read), program.loops_around(site), strict=False) if a is b]
        for same_iteration in (True, False):
            if same_iteration and program.order[site] > program.order[read]:
                continue

            def make(query: Query, op: MemoryOp = site, loops: list[For] = common, same: bool = same_iteration) -> list[Writer]:
                return [_earlier(query, read, op, loops, same)]

            verdict = _exists(program, make, budget)
            if verdict.verdict == CONFIRMED:
                return verdict
    return verdict


def _earlier(query: Query, read: MemoryOp, site: MemoryOp, common: list[For], same_iteration: bool) -> Writer:
    program = query.program
    _, probe = next(single(program, read))
    reader = Execution(query, "b", probe.blocks, probe.iterations)
    query.facts += reader.path_conditions(read)
    element = reader.element_index(read, positions(query, "tile", tile_shape(read)))
    if read.clipped:
        query.facts += query.inside(program.parameter(read).name, element)
    fixed = {loop: reader.iterations[loop] for loop in common} if same_iteration else {}
    writer = _writer(query, site, "w", element, list(reader.blocks), fixed)
    if not same_iteration:
        pairs = [(writer.execution.iterations[loop], reader.iterations[loop]) for loop in common]
        earlier = [smt.every([*(a == b for a, b in pairs[:k]), pairs[k][0] < pairs[k][1]]) for k in range(len(pairs))]
        writer.goals.append(smt.some(earlier))
    return writer
