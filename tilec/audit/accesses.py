"""Memory accesses: in bounds, free of conflicts between blocks, and written once where a single write is required."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.audit import smt
from tilec.audit.findings import CONFIRMED, TRUSTED, Finding, Verdict, iteration_pairs, never, pairs, positions, single, worst
from tilec.audit.positions import box, tile_shape
from tilec.audit.program import Program, exclusive, writes
from tilec.audit.scene import Query
from tilec.audit.smt import Budget, Term
from tilec.audit.values import Execution
from tilec.ir.core import Access, Parameter
from tilec.ir.ops import MemoryOp, Take


def bounds(program: Program, budget: Budget) -> Iterator[Finding]:
    """One finding per access; a clipped access is in bounds by definition."""
    for op in program.accesses():
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
        for query, execution in single(program, op):
            element_index = execution.element_index(op, positions(query, "tile", tile_shape(op)))
            path_conditions = execution.known(op)
            for condition in query.inside(tensor, element_index):
                yield never(query, [*path_conditions, smt.negate(condition)], budget)

    return worst(parts())


def takes(program: Program, budget: Budget) -> Iterator[Finding]:
    """One finding per `take`: its indices are positions of the axis."""
    for op in program.order:
        if isinstance(op, Take):
            yield _within_axis(program, op, budget).named("bounds", f"take along axis {op.axis}")


def _within_axis(program: Program, op: Take, budget: Budget) -> Verdict:
    source, indices = op.operands
    extent = smt.integer(source.tile.shape[op.axis])

    def parts() -> Iterator[Verdict]:
        for query, execution in single(program, op):
            index = execution.element(indices, positions(query, "tile", indices.tile.shape))
            yield never(query, [*execution.known(op), smt.some([index < 0, index >= extent])], budget)

    return worst(parts())


def races(program: Program, budget: Budget) -> Iterator[Finding]:
    """One finding per tensor that blocks write: no element written by one block is accessed by another."""
    for parameter in program.function.parameters:
        if not exclusive(parameter):
            continue
        conflicting = list(_pairs(program, parameter))
        if any(op.unsafe is not None for pair in conflicting for op in pair):
            yield Finding("race", f"`{parameter.name}`", TRUSTED, "inside an `unsafe` block")
        safe = [(left, right) for left, right in conflicting if left.unsafe is None and right.unsafe is None]
        if safe:
            verdict = worst(_disjoint(program, left, right, budget) for left, right in safe)
            yield verdict.named("race", f"`{parameter.name}`")


def _pairs(program: Program, parameter: Parameter) -> Iterator[tuple[MemoryOp, MemoryOp]]:
    accesses = [op for op in program.accesses() if program.parameter(op) is parameter]
    for number, left in enumerate(accesses):
        for right in accesses[number:]:
            atomic = {left.opcode, right.opcode} <= {"atomic", "atomic_scatter"}
            if (writes(left) or writes(right)) and not atomic:
                yield left, right


def _disjoint(program: Program, left: MemoryOp, right: MemoryOp, budget: Budget) -> Verdict:
    """Two different blocks never access the same element by these operations."""

    def parts() -> Iterator[Verdict]:
        for query, first, second in pairs(program, left, right):
            overlapping = overlap(query, first, left, second, right)
            different = smt.some(a != b for a, b in zip(first.blocks, second.blocks, strict=True) if not a.eq(b))
            yield never(query, [different, *overlapping], budget)

    return worst(parts())


def overlap(query: Query, first: Execution, left: MemoryOp, second: Execution, right: MemoryOp) -> list[Term]:
    """Conditions under which two executions access the same element."""
    conditions = [*first.known(left), *second.known(right)]
    if box(left) is not None and box(right) is not None:
        return conditions + _boxes_overlap(query, first, left, second, right)
    left_index = first.element_index(left, positions(query, "p", tile_shape(left)))
    right_index = second.element_index(right, positions(query, "q", tile_shape(right)))
    conditions += [smt.compare("eq", a, b) for a, b in zip(left_index, right_index, strict=True)]
    if left.clipped or right.clipped:
        conditions += query.inside(query.program.parameter(left).name, left_index)
    return conditions


def _boxes_overlap(query: Query, first: Execution, left: MemoryOp, second: Execution, right: MemoryOp) -> list[Term]:
    conditions: list[Term] = []
    corners = [
        execution.element_index(op, (smt.integer(0),) * len(tile_shape(op)))
        for execution, op in ((first, left), (second, right))
    ]
    shapes = [tile_shape(left), tile_shape(right)]
    for axis, (a, b) in enumerate(zip(*corners, strict=True)):
        conditions += [smt.compare("lt", a, smt.add(b, smt.integer(shapes[1][axis])))]
        conditions += [smt.compare("lt", b, smt.add(a, smt.integer(shapes[0][axis])))]
    dims = [query.expression(dim) for dim in left.operands[0].tensor.dims]
    for op, corner, shape in zip((left, right), corners, shapes, strict=True):
        if op.clipped:
            for start, extent, dim in zip(corner, shape, dims, strict=True):
                conditions += [
                    smt.compare("lt", start, dim),
                    smt.compare("gt", smt.add(start, smt.integer(extent)), smt.integer(0)),
                ]
    return conditions


def written_once(program: Program, budget: Budget) -> Iterator[Finding]:
    """One finding per written tensor: no block writes an element of an `Out` twice, and no scatter writes an element from two
    positions."""
    for parameter in program.function.parameters:
        if not exclusive(parameter) or parameter.access is Access.ATOMIC:
            continue
        accesses = [op for op in program.accesses() if program.parameter(op) is parameter and writes(op) and op.unsafe is None]
        pairs_to_check: list[tuple[MemoryOp, MemoryOp, bool]] = []
        for number, left in enumerate(accesses):
            if parameter.access is Access.OUT:
                pairs_to_check += [(left, right, False) for right in accesses[number:]]
            elif left.opcode == "scatter":
                pairs_to_check.append((left, left, True))
        if pairs_to_check:
            verdict = worst(_once(program, left, right, same, budget) for left, right, same in pairs_to_check)
            yield verdict.named("race", f"`{parameter.name}` written once")


def _once(program: Program, left: MemoryOp, right: MemoryOp, same_iteration: bool, budget: Budget) -> Verdict:
    """No block writes an element by both operations, except by a single execution of the same one."""

    def parts() -> Iterator[Verdict]:
        for query, first, second in pairs(program, left, right):
            second = Execution(query, "c", first.blocks, second.iterations)
            overlapping = overlap(query, first, left, second, right)
            if left is right:
                iterations = iteration_pairs(first, second, program.loops_around(left))
                distinct = [] if same_iteration else [smt.compare("ne", a, b) for a, b in iterations]
                overlapping += [smt.compare("eq", a, b) for a, b in iterations] if same_iteration else []
                if box(left) is None:
                    shape = tile_shape(left)
                    positions_of_both = zip(positions(query, "p", shape), positions(query, "q", shape), strict=True)
                    distinct += [a != b for a, b in positions_of_both if not a.eq(b)]
                overlapping.append(smt.some(distinct))
            yield never(query, overlapping, budget)

    return worst(parts())
