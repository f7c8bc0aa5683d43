"""Checks that arithmetic which decides where a block goes, what it copies and whom it waits for stays within its dtype: the
obligations of what passes insert, beside those that the prover has of what an author wrote.

In: a prepared function, as `prepare` made it: which values are proven is no part of its text. Out: nothing, or a VerifyError
that names the operation. Every `add`, `sub`, `mul`, `neg`, `abs` or conversion of integers on the way to an index, a bound, a
condition, a coordinate of a copy or a place in a ring

- is proven, by the prover or by the pass that inserted it, which says why (`Value.fits`); or
- fits by the ranges of its operands, at the machine's width; or
- is a step behind the end of its loop, and taken only below that end; or
- goes into sums alone that are proven: modulo 2^n they are right, whatever their terms did.

What is computed for an `unsafe` access may wrap, as the author was told, and so it may in the tests of it that passes add.
Shifts are an author's alone; by an amount that is not known, the prover takes what they give as it comes.
"""

from __future__ import annotations

from tilec.ir.core import Function, Op, Value, VerifyError
from tilec.ir.ops import Binary, Compare, For, Select
from tilec.ir.range_facts import within
from tilec.passes.analysis.divisibility import aligned_ranges
from tilec.passes.analysis.obligations import may_wrap
from tilec.passes.analysis.ranges import Range, unwrapped
from tilec.passes.analysis.relevance import steering_ops, trusted_ops
from tilec.passes.schedule.staged_loads import users_of


def check(function: Function) -> None:
    """Raise VerifyError where arithmetic may wrap and nobody has shown that it does not."""
    ranges = aligned_ranges(function)
    for step in {op.step for op in function.body.walk() if isinstance(op, For)}:  # of which each loop has an obligation
        ranges[step] = within(ranges[step], 1, ranges[step].high) or ranges[step]
    capped = {op.operands[1] for op in function.body.walk() if isinstance(op, Select) and _stays(op)}
    users = users_of(function.body)
    trusted = trusted_ops(function)
    for op in steering_ops(function):
        if op in trusted or (isinstance(op, Binary) and op.kind == "shl"):
            continue
        if may_wrap(op) and not (op.result.fits or op.result in capped or _is_within(op, ranges) or _is_term(op, users)):
            name = getattr(op, "kind", op.opcode)
            where = f" at {op.loc}" if op.loc is not None else ""
            raise VerifyError(f"`{name}`{where} may leave {op.result.tile.dtype}, and nothing shows that it does not")


def _is_within(op: Op, ranges: dict[Value, Range]) -> bool:
    found = unwrapped(op, ranges)
    low, high = op.result.tile.dtype.integer_range()
    return found is not None and low <= found.low and found.high <= high


def _is_term(op: Op, users: dict[Value, list[Op]]) -> bool:
    sums = [isinstance(one, Binary) and one.kind in ("add", "sub") and one.result.fits for one in users[op.result]]
    return bool(sums) and all(sums)


def _stays(op: Select) -> bool:
    """Whether it is `x + step if x < end else x`."""
    test, following, before = op.operands[0].owner, op.operands[1].owner, op.operands[2]
    is_below = isinstance(test, Compare) and test.kind == "lt" and test.operands[0] is before
    return is_below and isinstance(following, Binary) and following.kind == "add" and following.operands[0] is before
