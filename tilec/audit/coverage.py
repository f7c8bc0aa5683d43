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
from tilec.audit.program import Program, writes
from tilec.audit.scene import Scene
from tilec.audit.smt import Budget, Term
from tilec.audit.values import Execution, box, tile_shape
from tilec.audit.witness import Unknowns, applied, candidates
from tilec.ir.core import Access, Parameter
from tilec.ir.ops import For, MemoryOp

ATTEMPTS = 24
"""Maximum number of combinations of witnesses tried for one obligation."""
UNFOUND = "no block, turn and position that write every element were found"


@dataclass(slots=True)
class Writer:
    """A write to find: its conditions and its unknowns."""

    execution: Execution
    goals: list[Term]
    sought: Unknowns


Make = Callable[[Scene], list[Writer]]
"""Adds the facts of a question to a scene; returns the writers that may satisfy it."""


def coverage(program: Program, budget: Budget) -> Iterator[Finding]:
    """One finding per `Out` tensor."""
    for parameter in program.function.parameters:
        if parameter.access is Access.OUT:
            yield covered(program, parameter, budget)


def covered(program: Program, parameter: Parameter, budget: Budget) -> Finding:
    """Whether every element of a tensor is written."""
    sites = [op for op in program.sites() if program.parameter(op) is parameter and writes(op)]
    verdict = _covered(program, [op for op in sites if op.unsafe is None], parameter.name, budget)
    if verdict.verdict != CONFIRMED and any(op.unsafe is not None for op in sites):
        verdict = Verdict(TRUSTED, "inside an `unsafe` block")
    return verdict.named("coverage", f"`{parameter.name}`")


def _covered(program: Program, sites: list[MemoryOp], tensor: str, budget: Budget) -> Verdict:
    groups = [[op] for op in sites] + ([sites] if len(sites) > 1 else [])
    found = Verdict(UNKNOWN, UNFOUND)
    for group in groups:

        def make(scene: Scene, chosen: list[MemoryOp] = group) -> list[Writer]:
            element = _element(scene, tensor)
            return [_writer(scene, op, f"w{k}", element, _blocks(program, f"w{k}"), {}) for k, op in enumerate(chosen)]

        found = _exists(program, make, budget)
        if found.verdict == CONFIRMED:
            break
    return found


def _element(scene: Scene, tensor: str) -> tuple[Term, ...]:
    """An arbitrary element of a tensor."""
    dims = [scene.expression(dim) for dim in scene.program.function.parameter(tensor).value.tensor.dims]
    element = tuple(smt.unknown(f"element{axis}") for axis in range(len(dims)))
    for one, dim in zip(element, dims, strict=True):
        scene.facts += [one >= 0, one < dim]
    return element


def _blocks(program: Program, name: str) -> list[Term]:
    return [
        smt.integer(0) if extent.constant == 1 else smt.unknown(f"{name}.block{axis}")
        for axis, extent in enumerate(program.contract.grid)
    ]


def _writer(
    scene: Scene, op: MemoryOp, name: str, element: tuple[Term, ...], blocks: list[Term], fixed: dict[For, Term | int]
) -> Writer:
    """A write of `element` by `op`; iterations in `fixed` are given, the others unknown."""
    program = scene.program
    definitions = Definitions(f"{name}.d", outer=scene.universal)
    turns: dict[For, Term | int] = {}
    for depth, loop in enumerate(program.loops_around(op)):
        turns[loop] = fixed[loop] if loop in fixed else smt.unknown(f"{name}.turn{depth}")
    execution = Execution(scene, name, blocks, turns, definitions)
    shape = tile_shape(op)
    spot = [smt.integer(0) if box(op) is not None or e == 1 else smt.unknown(f"{name}.at{k}") for k, e in enumerate(shape)]
    place = execution.place(op, tuple(spot))
    goals = execution.runs(op)
    if box(op) is None:
        goals += [smt.compare("eq", index, one) for index, one in zip(place, element, strict=True)]
        goals += [smt.every([at >= 0, at < extent]) for at, extent in zip(spot, shape, strict=True)]
    else:
        for start, one, extent in zip(place, element, shape, strict=True):
            goals += [smt.compare("le", start, one), smt.compare("lt", one, smt.add(start, smt.integer(extent)))]
    goals += definitions.facts
    mine = [t for t in (*blocks, *turns.values(), *spot) if not isinstance(t, int) and str(t).startswith(f"{name}.")]
    defaults = {str(term): smt.integer(0) for term in mine}
    for quotient, rest, _, _ in definitions.known.values():
        mine += [term for term in (quotient, rest) if str(term).startswith(definitions.prefix)]
    sought = Unknowns({str(term): term for term in mine}, list(zip(place, element, strict=True)), definitions, defaults)
    return Writer(execution, goals, sought)


def _exists(program: Program, make: Make, budget: Budget) -> Verdict:
    """Whether, for every element, one of the writers of `make` exists."""
    verdict = Verdict(UNKNOWN, UNFOUND)
    probe = Scene(program)
    counts = [len(list(candidates(writer.sought, Definitions("n")))) for writer in make(probe)]
    if not counts or not all(counts):
        return verdict
    for choice in islice(product(*(range(count) for count in counts)), ATTEMPTS):
        if budget.spent():
            return Verdict(UNKNOWN, budget.over())
        scene = Scene(program)
        writers = make(scene)
        solutions = [
            next(islice(candidates(writer.sought, scene.universal), number, None))
            for writer, number in zip(writers, choice, strict=True)
        ]
        verdict = _holds(scene, writers, solutions, budget)
        if verdict.verdict == CONFIRMED:
            break
    return verdict


def _holds(scene: Scene, writers: list[Writer], solutions: list[dict[str, Term]], budget: Budget) -> Verdict:
    """Whether the solutions satisfy all conditions of one of the writers."""

    def put(term: Term) -> Term:
        for writer, solution in zip(writers, solutions, strict=True):
            term = applied(term, writer.sought, solution)
        return term

    for writer in writers:
        scene.facts += [put(fact) for fact in writer.execution.own_facts]
        scene.universal.splits += [(put(term), low, high) for term, low, high in writer.sought.definitions.splits]
    goals = [[put(goal) for goal in writer.goals] for writer in writers]
    if len(goals) == 1:
        return worst(_shown(scene, goal, budget) for goal in goals[0])
    return _shown(scene, smt.some(smt.every(one) for one in goals), budget)


def _shown(scene: Scene, goal: Term, budget: Budget) -> Verdict:
    answer = scene.check([smt.negate(goal)], budget)
    if answer.verdict == "none":
        return Verdict(CONFIRMED)
    return Verdict(UNKNOWN, answer.reason or UNFOUND)


# Reads after writes


def order(program: Program, budget: Budget) -> Iterator[Finding]:
    """One finding per read of a `Scratch` or `Out` tensor: the block has written the elements before."""
    for op in program.sites():
        parameter = program.parameter(op)
        if writes(op) or parameter.access not in (Access.SCRATCH, Access.OUT):
            continue
        subject = program.subject(op)
        if op.unsafe is not None:
            yield Finding("order", subject, TRUSTED, "inside an `unsafe` block")
            continue
        sites = [other for other in program.sites() if program.parameter(other) is parameter and writes(other)]
        yield _written_before(program, op, [o for o in sites if o.unsafe is None], budget).named("order", subject)


def _written_before(program: Program, read: MemoryOp, sites: list[MemoryOp], budget: Budget) -> Verdict:
    found = Verdict(UNKNOWN, "no write that comes before was found")
    if any(loop in program.followed for loop in program.loops_around(read)):
        return Verdict(UNKNOWN, "the read is in a loop that is followed turn by turn")
    for site in sites:
        common = [a for a, b in zip(program.loops_around(read), program.loops_around(site), strict=False) if a is b]
        for same_turn in (True, False):
            if same_turn and program.order[site] > program.order[read]:
                continue

            def make(scene: Scene, op: MemoryOp = site, loops: list[For] = common, same: bool = same_turn) -> list[Writer]:
                return [_earlier(scene, read, op, loops, same)]

            found = _exists(program, make, budget)
            if found.verdict == CONFIRMED:
                return found
    return found


def _earlier(scene: Scene, read: MemoryOp, site: MemoryOp, common: list[For], same_turn: bool) -> Writer:
    program = scene.program
    _, probe = next(single(program, read))
    reader = Execution(scene, "b", probe.blocks, probe.turns)
    scene.facts += reader.runs(read)
    element = reader.place(read, positions(scene, "tile", tile_shape(read)))
    if read.clipped:
        scene.facts += scene.inside(program.parameter(read).name, element)
    fixed = {loop: reader.turns[loop] for loop in common} if same_turn else {}
    writer = _writer(scene, site, "w", element, list(reader.blocks), fixed)
    if not same_turn:
        pairs = [(writer.execution.turns[loop], reader.turns[loop]) for loop in common]
        earlier = [smt.every([*(a == b for a, b in pairs[:k]), pairs[k][0] < pairs[k][1]]) for k in range(len(pairs))]
        writer.goals.append(smt.some(earlier))
    return writer
