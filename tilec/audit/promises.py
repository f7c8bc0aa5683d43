"""A kernel's promises about the integers that it leaves in a tensor (`ensures`), derived from the tile IR and proven with z3.

Each store to a promised tensor stays within the range, and each pair of stores satisfies promises about pairs of elements.
The arithmetic that computes stored integers does not wrap. An `InOut` tensor whose old contents do not satisfy the promise
must be written completely.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.audit import smt
from tilec.audit.arithmetic import of_operations
from tilec.audit.coverage import covered
from tilec.audit.findings import CONFIRMED, TRUSTED, Finding, Verdict, never, pairs, positions, single, worst
from tilec.audit.program import Program, writes
from tilec.audit.scene import Loaded, Scene
from tilec.audit.smt import Budget, Term
from tilec.audit.values import Execution, tile_shape
from tilec.ir.core import Access, Promise
from tilec.ir.ops import MemoryOp


def promises(program: Program, budget: Budget) -> Iterator[Finding]:
    """Findings of the arithmetic that computes stored integers, then one for each store and promise."""
    function = program.function
    promised = {promise.tensor for promise in function.promises}
    stores = [op for op in program.sites() if writes(op) and program.parameter(op).name in promised]
    yield from of_operations(program, program.only_behind([op.tile for op in stores]), budget)
    whole: set[str] = set()
    for promise in function.promises:
        mine = [op for op in stores if program.parameter(op).name == promise.tensor]
        for op in mine:
            subject = program.subject(op)
            verdict = _within(program, promise, op, budget) if op.unsafe is None else _unsafe()
            yield verdict.named("values", f"{subject} within `{_text(promise)}`")
        for word in promise.said:
            for place, left in enumerate(mine):
                for right in mine[place:] if word == "distinct" else mine:
                    verdict = _related(program, word, left, right, budget) if left.unsafe is right.unsafe is None else _unsafe()
                    yield verdict.named("values", f"{program.subject(left)}, {word}")
        if promise.tensor not in whole and not _holds_unwritten(program, promise, budget):
            whole.add(promise.tensor)
            yield covered(program, function.parameter(promise.tensor), budget)


def _unsafe() -> Verdict:
    return Verdict(TRUSTED, "inside an `unsafe` block")


def _text(promise: Promise) -> str:
    """The promise as in the manifest."""
    above = "" if not promise.above else promise.above[0] if len(promise.above) == 1 else f"({', '.join(promise.above)})"
    words = [f", above={above}" if above else "", *(f", {word}=True" for word in promise.said)]
    return f"ensures({promise.tensor}, {promise.low}, {promise.high}{''.join(words)})"


def _within(program: Program, promise: Promise, op: MemoryOp, budget: Budget) -> Verdict:
    """The stored integer, minus the old contents of the tensors in `above`, is in the promised range."""

    def parts() -> Iterator[Verdict]:
        for scene, execution in single(program, op):
            at = positions(scene, "tile", tile_shape(op))
            place = execution.place(op, at)
            share = execution.element(op.tile, at)
            for name in promise.above:
                share = smt.sub(share, _held(scene, name, place))
            reached = [*execution.runs(op), *scene.inside(promise.tensor, place)]
            outside = smt.some([share < scene.expression(promise.low), share >= scene.expression(promise.high)])
            yield never(scene, [*reached, outside], budget)

    return worst(parts())


def _held(scene: Scene, name: str, place: tuple[Term, ...]) -> Term:
    """The contents of a tensor element before the launch."""
    term = scene.fresh(f"old.{name}", scene.program.function.parameter(name).value.tensor.dtype.integer_range())
    scene.facts += scene.record(Loaded(term, name, place))
    return term


def _related(program: Program, word: str, left: MemoryOp, right: MemoryOp, budget: Budget) -> Verdict:
    """Two elements, written by any blocks, are not equal (`distinct`), or not in descending order (`sorted`)."""
    tensor = program.parameter(left).name

    def parts() -> Iterator[Verdict]:
        for scene, first, second in pairs(program, left, right):
            one, other = _element(scene, first, left, "p"), _element(scene, second, right, "q")
            reached = [
                *first.runs(left), *second.runs(right), *scene.inside(tensor, one[0]), *scene.inside(tensor, other[0]),
            ]  # fmt: skip
            if word == "distinct":
                wrong = [smt.some(a != b for a, b in zip(one[0], other[0], strict=True)), one[1] == other[1]]
            else:
                wrong = [one[0][0] < other[0][0], other[1] < one[1]]
            yield never(scene, [*reached, *wrong], budget)

    return worst(parts())


def _element(scene: Scene, execution: Execution, op: MemoryOp, name: str) -> tuple[tuple[Term, ...], Term]:
    at = positions(scene, name, tile_shape(op))
    return execution.place(op, at), execution.element(op.tile, at)


def _holds_unwritten(program: Program, promise: Promise, budget: Budget) -> bool:
    """Whether elements that no store writes satisfy the promise; an `Out` tensor has none, because `coverage` proves that."""
    if program.function.parameter(promise.tensor).access is Access.OUT:
        return True
    if promise.said or promise.above not in ((), (promise.tensor,)):
        return False
    scene = Scene(program)
    low, high = scene.expression(promise.low), scene.expression(promise.high)
    known = [(smt.integer(0), smt.integer(1))] if promise.above else []
    if not promise.above:
        for check in program.contract.values.get(promise.tensor, []):
            known.append((scene.expression(check.low), scene.expression(check.high)))
    return any(never(scene, [smt.some([least < low, high < most])], budget).verdict == CONFIRMED for least, most in known)
