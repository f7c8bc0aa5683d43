"""Integer arithmetic that memory accesses depend on: nothing wraps, divisors and steps are positive.

All other proofs use unbounded integers, which these obligations make exact: consider the first operation of an execution that
wraps; its operands are exact, and its own obligation states that it does not wrap. A divisor or step that is confirmed
positive is recorded in the program, in the order of the text, and used from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilec.audit import smt
from tilec.audit.findings import CONFIRMED, Finding, Verdict, never, positions, single, worst
from tilec.audit.positions import box
from tilec.audit.program import Program
from tilec.audit.smt import Budget, Term
from tilec.ir.core import Op, Value
from tilec.ir.ops import Binary, Cast, For, Unary

_WORDS = {"add": "+", "sub": "-", "mul": "*", "shl": "<<", "neg": "-", "floordiv": "//", "mod": "%"}


def arithmetic(program: Program, budget: Budget) -> Iterator[Finding]:
    """One finding per operation that may wrap, per divisor and per loop."""
    yield from of_operations(program, program.deciding, budget)
    for op in program.accesses():
        if op.clipped and op.unsafe is None and box(op) is not None:
            subject = f"end of {program.subject(op)}"
            yield _ends(program, op, budget).named("wrap", subject)


def of_operations(program: Program, ops: Iterable[Op], budget: Budget) -> Iterator[Finding]:
    """The findings of these operations, in the order of the text."""
    for op in ops:
        if isinstance(op, For):
            verdict = _positive(program, op, op.step, budget)
            if verdict.verdict == CONFIRMED:
                program.positive.add(op)
            yield verdict.named("divisor", "step of `range`")
            yield _counter(program, op, budget).named("wrap", "loop variable")
        elif isinstance(op, Binary) and op.kind in ("floordiv", "mod") and op.result.tile.dtype.is_integer:
            verdict = _positive(program, op, op.operands[1], budget)
            if verdict.verdict == CONFIRMED:
                program.positive.add(op)
            yield verdict.named("divisor", f"divisor of `{_WORDS[op.kind]}`")
        elif may_wrap(op):
            kind = op.kind if isinstance(op, Binary | Unary) else "cast"
            yield _fits(program, op, budget).named("wrap", f"`{_WORDS.get(kind, kind)}`")


def may_wrap(op: Op) -> bool:
    """Whether the exact result of an operation may not fit its type."""
    if len(op.results) != 1 or not op.result.tile.dtype.is_integer:
        return False
    if isinstance(op, Binary):
        return op.kind in ("add", "sub", "mul", "shl")
    if isinstance(op, Unary):
        return op.kind in ("neg", "abs")
    return isinstance(op, Cast) and op.operands[0].tile.dtype.is_integer


def _outside(term: Term, value: Value) -> Term:
    low, high = value.tile.dtype.integer_range()
    return smt.some([term < low, term > high])


def _fits(program: Program, op: Op, budget: Budget) -> Verdict:
    def parts() -> Iterator[Verdict]:
        for query, execution in single(program, op):
            at = positions(query, "tile", op.result.tile.shape)
            exact = execution.element(op.result, at)
            yield never(query, [*execution.known(op), _outside(exact, op.result)], budget)

    return worst(parts())


def _positive(program: Program, op: Op, value: Value, budget: Budget) -> Verdict:
    def parts() -> Iterator[Verdict]:
        for query, execution in single(program, op):
            at = positions(query, "tile", value.tile.shape)
            yield never(query, [*execution.known(op), execution.element(value, at) < 1], budget)

    return worst(parts())


def _counter(program: Program, op: For, budget: Budget) -> Verdict:
    """The loop variable, incremented past the last iteration, stays within its type; otherwise the loop could not end."""
    last = op.regions[0].ops[-1]

    def parts() -> Iterator[Verdict]:
        for query, execution in single(program, last):
            following = smt.add(execution.variable(op), execution.element(op.step))
            yield never(query, [*execution.known(last), _outside(following, op.upper)], budget)

    return worst(parts())


def _ends(program: Program, op: Op, budget: Budget) -> Verdict:
    """A clipped box may begin outside the tensor, but the index of its last element must fit the offset's type."""
    offsets = op.operands[1:] if op.opcode == "load" else op.operands[2:]
    shape = op.result.tile.shape if op.opcode == "load" else op.operands[1].tile.shape

    def parts() -> Iterator[Verdict]:
        for query, execution in single(program, op):
            for offset, extent in zip(offsets, shape, strict=True):
                end = smt.add(execution.element(offset), smt.integer(extent - 1))
                yield never(query, [*execution.known(op), _outside(end, offset)], budget)

    return worst(parts())
