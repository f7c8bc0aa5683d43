"""Checks that integer arithmetic of control flow, copies and synchronization does not wrap: the no-wrap obligations of
operations that passes insert. The prover has those of operations that the author wrote.

In: a prepared function in memory, since the text form does not record which values are proven (`Value.fits`). Out: nothing, or
a VerifyError that names the operation. Every integer `add`, `sub`, `mul`, `neg`, `abs` or conversion that an index, a loop
bound, a condition, a copy coordinate or a ring position depends on

- is proven, by the prover or by the pass that inserted it, which states the reason (`Value.fits`); or
- fits by the ranges of its operands at their dtype's width; or
- is one step past the end of its loop, and selected only below that end; or
- is used only in proven sums: these are right modulo 2^n even if a term wrapped.

Arithmetic for an `unsafe` access may wrap, as documented, and so may the bounds checks that passes add to it. Only authors
write shifts; the prover treats a shift by an unknown amount as an unknown value.
"""

from __future__ import annotations

from tilec.ir.core import Function, Op, Value, VerifyError
from tilec.ir.facts.range_facts import within
from tilec.ir.ops import Binary, Compare, For, Select
from tilec.passes.analysis.divisibility import aligned_ranges
from tilec.passes.analysis.obligations import may_wrap
from tilec.passes.analysis.ranges import Range, unwrapped
from tilec.passes.analysis.relevance import steering_ops, trusted_ops
from tilec.passes.schedule.pipelining.staged_loads import users_of


def check(function: Function) -> None:
    """Raise VerifyError if arithmetic may wrap and no proof shows that it does not."""
    ranges = aligned_ranges(function)
    for step in {op.step for op in function.body.walk() if isinstance(op, For)}:  # positive, by each loop's obligation
        ranges[step] = within(ranges[step], 1, ranges[step].high) or ranges[step]
    stopping = {op.operands[1] for op in function.body.walk() if isinstance(op, Select) and _stops_at_end(op)}
    users = users_of(function.body)
    trusted = trusted_ops(function)
    for op in steering_ops(function):
        if op in trusted or (isinstance(op, Binary) and op.kind == "shl"):
            continue
        if may_wrap(op) and not (op.result.fits or op.result in stopping or _is_within(op, ranges) or _is_term(op, users)):
            name = getattr(op, "kind", op.opcode)
            location = f" at {op.loc}" if op.loc is not None else ""
            raise VerifyError(f"`{name}`{location} may leave {op.result.tile.dtype}, and nothing shows that it does not")


def _is_within(op: Op, ranges: dict[Value, Range]) -> bool:
    found = unwrapped(op, ranges)
    low, high = op.result.tile.dtype.integer_range()
    return found is not None and low <= found.low and found.high <= high


def _is_term(op: Op, users: dict[Value, list[Op]]) -> bool:
    sums = [isinstance(user, Binary) and user.kind in ("add", "sub") and user.result.fits for user in users[op.result]]
    return bool(sums) and all(sums)


def _stops_at_end(op: Select) -> bool:
    """Whether the selection is `x + step if x < end else x`."""
    test, following, before = op.operands[0].owner, op.operands[1].owner, op.operands[2]
    is_below = isinstance(test, Compare) and test.kind == "lt" and test.operands[0] is before
    return is_below and isinstance(following, Binary) and following.kind == "add" and following.operands[0] is before
