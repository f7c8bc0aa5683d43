"""A kernel's promises about the integers that it leaves in a tensor (`ensures`), derived from the tile IR and proven with z3.

Each store to a promised tensor stays within the range, and each pair of stores satisfies promises about pairs of elements.
The arithmetic that computes stored integers does not wrap. An `InOut` tensor whose old contents do not satisfy the promise
must be written completely.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tilec.audit import smt
from tilec.audit.arithmetic import of_operations
from tilec.audit.coverage import covered
from tilec.audit.findings import CONFIRMED, TRUSTED, Finding, Verdict, never, pairs, positions, single, worst
from tilec.audit.positions import tile_shape
from tilec.audit.program import Program, writes
from tilec.audit.scene import Loaded, Query
from tilec.audit.smt import Budget, Term
from tilec.audit.values import Execution
from tilec.ir.core import Access, Promise
from tilec.ir.ops import MemoryOp

WORDS: Final = {"distinct": "distinct", "distinct_in_rows": "distinct in each row", "sorted": "sorted"}


def promises(program: Program, budget: Budget) -> Iterator[Finding]:
    """Findings of the arithmetic that computes stored integers, then one for each store and promise."""
    function = program.function
    promised = {promise.tensor for promise in function.promises}
    stores = [op for op in program.accesses() if writes(op) and program.parameter(op).name in promised]
    yield from of_operations(program, program.exclusive_sources([op.tile for op in stores]), budget)
    covered_tensors: set[str] = set()
    for promise in function.promises:
        own_stores = [op for op in stores if program.parameter(op).name == promise.tensor]
        for op in own_stores:
            subject = program.subject(op)
            verdict = _within(program, promise, op, budget) if op.unsafe is None else _unsafe()
            yield verdict.named("values", f"{subject} within `{_text(promise)}`")
        for word in promise.flags:
            for number, left in enumerate(own_stores):
                for right in own_stores if word == "sorted" else own_stores[number:]:
                    verdict = _related(program, word, left, right, budget) if left.unsafe is right.unsafe is None else _unsafe()
                    yield verdict.named("values", f"{program.subject(left)}, {WORDS[word]}")
        if promise.tensor not in covered_tensors and not _holds_unwritten(program, promise, budget):
            covered_tensors.add(promise.tensor)
            yield covered(program, function.parameter(promise.tensor), budget)


def _unsafe() -> Verdict:
    return Verdict(TRUSTED, "inside an `unsafe` block")


def _text(promise: Promise) -> str:
    """The promise as in the manifest."""
    above = "" if not promise.above else promise.above[0] if len(promise.above) == 1 else f"({', '.join(promise.above)})"
    words = [f", above={above}" if above else "", *(f", {word}=True" for word in promise.flags)]
    return f"ensures({promise.tensor}, {promise.low}, {promise.high}{''.join(words)})"


def _within(program: Program, promise: Promise, op: MemoryOp, budget: Budget) -> Verdict:
    """The stored integer, minus the old contents of the tensors in `above`, is in the promised range."""

    def parts() -> Iterator[Verdict]:
        for query, execution in single(program, op):
            at = positions(query, "tile", tile_shape(op))
            element_index = execution.element_index(op, at)
            share = execution.element(op.tile, at)
            for name in promise.above:
                share = smt.sub(share, _kept(query, name, element_index))
            reached = [*execution.known(op), *query.inside(promise.tensor, element_index)]
            outside = smt.some([share < query.expression(promise.low), share >= query.expression(promise.high)])
            yield never(query, [*reached, outside], budget)

    return worst(parts())


def _kept(query: Query, name: str, element_index: tuple[Term, ...]) -> Term:
    """The contents of a tensor element before the launch."""
    term = query.fresh(f"old.{name}", query.program.function.parameter(name).value.tensor.dtype.integer_range())
    query.facts += query.record(Loaded(term, name, element_index))
    return term


def _related(program: Program, word: str, left: MemoryOp, right: MemoryOp, budget: Budget) -> Verdict:
    """Two elements, written by any blocks, are not equal (`distinct`; `distinct_in_rows` if they are of one row), or not in
    descending order (`sorted`)."""
    tensor = program.parameter(left).name

    def parts() -> Iterator[Verdict]:
        for query, first, second in pairs(program, left, right):
            one, other = _element(query, first, left, "p"), _element(query, second, right, "q")
            path = [
                *first.known(left), *second.known(right), *query.inside(tensor, one[0]),
                *query.inside(tensor, other[0]),
            ]  # fmt: skip
            if word == "distinct_in_rows":
                row = [a == b for a, b in zip(one[0][:-1], other[0][:-1], strict=True)]
                violation = [*row, one[0][-1] != other[0][-1], one[1] == other[1]]
            elif word == "distinct":
                violation = [smt.some(a != b for a, b in zip(one[0], other[0], strict=True)), one[1] == other[1]]
            else:
                violation = [one[0][0] < other[0][0], other[1] < one[1]]
            yield never(query, [*path, *violation], budget)

    return worst(parts())


def _element(query: Query, execution: Execution, op: MemoryOp, name: str) -> tuple[tuple[Term, ...], Term]:
    at = positions(query, name, tile_shape(op))
    return execution.element_index(op, at), execution.element(op.tile, at)


def _holds_unwritten(program: Program, promise: Promise, budget: Budget) -> bool:
    """Whether elements that no store writes satisfy the promise; an `Out` tensor has none, because `coverage` proves that."""
    if program.function.parameter(promise.tensor).access is Access.OUT:
        return True
    if promise.flags or promise.above not in ((), (promise.tensor,)):
        return False
    query = Query(program)
    low, high = query.expression(promise.low), query.expression(promise.high)
    ranges = [(smt.integer(0), smt.integer(1))] if promise.above else []
    if not promise.above:
        for check in program.contract.values.get(promise.tensor, []):
            ranges.append((query.expression(check.low), query.expression(check.high)))
    return any(never(query, [smt.some([lowest < low, high < end])], budget).verdict == CONFIRMED for lowest, end in ranges)
