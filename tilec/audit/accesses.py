"""Memory accesses: in bounds, free of conflicts between blocks, and written once where a single write is required."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.audit import smt
from tilec.audit.findings import CONFIRMED, TRUSTED, Finding, Verdict, never, pairs, positions, single, step_moments, worst
from tilec.audit.program import Program, exclusive, writes
from tilec.audit.scene import Scene
from tilec.audit.smt import Budget, Term
from tilec.audit.values import Execution, box, tile_shape
from tilec.ir.core import Access, Parameter
from tilec.ir.ops import MemoryOp


def bounds(program: Program, budget: Budget) -> Iterator[Finding]:
    """One finding per access; a clipped access is in bounds by definition."""
    for op in program.sites():
        subject = program.subject(op)
        if op.unsafe is not None:
            yield Finding("bounds", subject, TRUSTED, "inside an `unsafe` block")
        elif op.clipped:
            yield Finding("bounds", subject, CONFIRMED)
        else:
            yield _inside(program, op, budget).named("bounds", subject)


def _inside(program: Program, op: MemoryOp, budget: Budget) -> Verdict:
    tensor = program.parameter(op).name

    def parts() -> Iterator[Verdict]:
        for scene, execution in single(program, op):
            place = execution.place(op, positions(scene, "tile", tile_shape(op)))
            runs = execution.runs(op)
            for condition in scene.inside(tensor, place):
                yield never(scene, [*runs, smt.negate(condition)], budget)

    return worst(parts())


def races(program: Program, budget: Budget) -> Iterator[Finding]:
    """One finding per tensor that blocks write: no element written by one block is accessed by another."""
    for parameter in program.function.parameters:
        if not exclusive(parameter):
            continue
        met = list(_pairs(program, parameter))
        if any(op.unsafe is not None for pair in met for op in pair):
            yield Finding("race", f"`{parameter.name}`", TRUSTED, "inside an `unsafe` block")
        kept = [(left, right) for left, right in met if left.unsafe is None and right.unsafe is None]
        if kept:
            verdict = worst(_apart(program, left, right, budget) for left, right in kept)
            yield verdict.named("race", f"`{parameter.name}`")


def _pairs(program: Program, parameter: Parameter) -> Iterator[tuple[MemoryOp, MemoryOp]]:
    sites = [op for op in program.sites() if program.parameter(op) is parameter]
    for place, left in enumerate(sites):
        for right in sites[place:]:
            atomic = left.opcode == right.opcode == "atomic"
            if (writes(left) or writes(right)) and not atomic:
                yield left, right


def _apart(program: Program, left: MemoryOp, right: MemoryOp, budget: Budget) -> Verdict:
    """Two different blocks never access the same element by these operations."""

    def parts() -> Iterator[Verdict]:
        for scene, first, second in pairs(program, left, right):
            touching = meeting(scene, first, left, second, right)
            different = smt.some(a != b for a, b in zip(first.blocks, second.blocks, strict=True) if not a.eq(b))
            yield never(scene, [different, *touching], budget)

    return worst(parts())


def meeting(scene: Scene, first: Execution, left: MemoryOp, second: Execution, right: MemoryOp) -> list[Term]:
    """Conditions under which two executions access the same element."""
    found = [*first.runs(left), *second.runs(right)]
    if box(left) is not None and box(right) is not None:
        return found + _boxes_meet(scene, first, left, second, right)
    one = first.place(left, positions(scene, "p", tile_shape(left)))
    other = second.place(right, positions(scene, "q", tile_shape(right)))
    found += [smt.compare("eq", a, b) for a, b in zip(one, other, strict=True)]
    if left.clipped or right.clipped:
        found += scene.inside(scene.program.parameter(left).name, one)
    return found


def _boxes_meet(scene: Scene, first: Execution, left: MemoryOp, second: Execution, right: MemoryOp) -> list[Term]:
    found: list[Term] = []
    corners = [
        execution.place(op, (smt.integer(0),) * len(tile_shape(op))) for execution, op in ((first, left), (second, right))
    ]
    shapes = [tile_shape(left), tile_shape(right)]
    for axis, (a, b) in enumerate(zip(*corners, strict=True)):
        found += [smt.compare("lt", a, smt.add(b, smt.integer(shapes[1][axis])))]
        found += [smt.compare("lt", b, smt.add(a, smt.integer(shapes[0][axis])))]
    dims = [scene.expression(dim) for dim in left.operands[0].tensor.dims]
    for op, corner, shape in zip((left, right), corners, shapes, strict=True):
        if op.clipped:
            for start, extent, dim in zip(corner, shape, dims, strict=True):
                found += [smt.compare("lt", start, dim), smt.compare("gt", smt.add(start, smt.integer(extent)), smt.integer(0))]
    return found


def written_once(program: Program, budget: Budget) -> Iterator[Finding]:
    """One finding per written tensor: no block writes an element of an `Out` twice, and no scatter writes an element from two
    positions."""
    for parameter in program.function.parameters:
        if not exclusive(parameter) or parameter.access is Access.ATOMIC:
            continue
        sites = [op for op in program.sites() if program.parameter(op) is parameter and writes(op) and op.unsafe is None]
        questions: list[tuple[MemoryOp, MemoryOp, bool]] = []
        for place, left in enumerate(sites):
            if parameter.access is Access.OUT:
                questions += [(left, right, False) for right in sites[place:]]
            elif left.opcode == "scatter":
                questions.append((left, left, True))
        if questions:
            verdict = worst(_once(program, left, right, same, budget) for left, right, same in questions)
            yield verdict.named("race", f"`{parameter.name}` written once")


def _once(program: Program, left: MemoryOp, right: MemoryOp, same_turn: bool, budget: Budget) -> Verdict:
    """No block writes an element by both operations, except by a single execution of the same one."""

    def parts() -> Iterator[Verdict]:
        for scene, first, second in pairs(program, left, right):
            second = Execution(scene, "c", first.blocks, second.turns)
            touching = meeting(scene, first, left, second, right)
            if left is right:
                moments = step_moments(first, second, program.loops_around(left))
                apart = [] if same_turn else [smt.compare("ne", a, b) for a, b in moments]
                touching += [smt.compare("eq", a, b) for a, b in moments] if same_turn else []
                if box(left) is None:
                    shape = tile_shape(left)
                    spots = zip(positions(scene, "p", shape), positions(scene, "q", shape), strict=True)
                    apart += [a != b for a, b in spots if not a.eq(b)]
                touching.append(smt.some(apart))
            yield never(scene, touching, budget)

    return worst(parts())
