"""Keeps the maximum of a running softmax until it has grown by more than a factor of 2^8 of its exponential, so that hardly any
iteration scales the second sums (Zadouri et al., FlashAttention-4, 2026).

In: a loop that carries for each row a reference m, a sum l and a row of second sums o:

    m' = max(m, new);  p = exp2(s - m');  f = exp2(m - m');  l' = l * f + sum(p);  o' = o * f + p @ v

and after it uses o * (c / l) alone, where new is the largest of each row of s. Out: the same with m' = `kept_maximum` of m and
new. Another m' multiplies p, l and o by one factor, which o / l does not have: results change by rounding only. p is at most
256 instead of 1, which every 16-bit float holds; with a lower reference, as the largest less 10, f16 has no room for that. o
becomes at most 2^8 times larger too, and may overflow f32 where it would exceed 2^120. l is at least 1, but for rounding, as
before, because the key whose score is m' has p = 1.

s and new may be products with one scalar of the launch. If that is not positive, new is below the largest of s, and so the
author's p is more than 1: in f16, which would have no room for 256 times as much, the maximum is kept only where the scalar is
positive. Other floats have the range of f32.

The pattern is matched operation by operation, and nothing is changed if any other operation depends on one of these values.
"""

from __future__ import annotations

from collections import defaultdict
from math import inf
from typing import Final, TypeVar

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import Binary, Broadcast, Cast, Constant, KeptMaximum, Reduce, Reshape, Unary
from tilec.passes.schedule.pipelining.back_to_back import BackToBack
from tilec.passes.schedule.pipelining.staged_loads import users_of
from tilec.target.dtypes import f16

THRESHOLD: Final = 8.0
"""Growth of the maximum, in units of the argument of exp2, up to which it is kept."""
Uses = dict[Value, list[Op]]
"""The operations that use each value, as `users_of` has them."""
_Kind = TypeVar("_Kind", bound=Op)


def keep(function: Function, pair: BackToBack, factors: Value) -> None:
    """Replace the maximum, in place, keeping its value. `factors`: by which an iteration multiplies the second sums."""
    uses: Uses = defaultdict(list, users_of(function.body))
    maximum = _maximum(pair, factors)
    if maximum is not None and _is_relative(pair, factors, maximum, uses):
        block, operands = pair.loop.regions[0], _ordered(pair, maximum.operands)
        if pair.second.mma.operands[0].tile.dtype == f16:
            factors_of_scores = _scalars(operands[1])
            if len(factors_of_scores) > 1:
                return
            operands += factors_of_scores
        kept = KeptMaximum(operands=operands, results=maximum.results, threshold=THRESHOLD, loc=maximum.loc)
        kept.result.owner = kept
        block.ops[block.ops.index(maximum)] = kept


def _maximum(pair: BackToBack, factors: Value) -> Op | None:
    """`m' = max(m, new)` of `factors = exp2(m - m')`, where m is carried and begins at -inf."""
    body, difference = pair.loop.regions[0], _argument(factors)
    if difference is None or not isinstance(difference.owner, Binary) or difference.owner.kind != "sub":
        return None
    old, maximum = difference.owner.operands[0], difference.owner.operands[1].owner
    if old not in body.arguments[1:] or not isinstance(maximum, Binary) or maximum.kind != "max":
        return None
    index = body.arguments.index(old) - 1
    first = pair.loop.initial[index].owner
    begins = isinstance(first, Constant) and first.value == -inf
    carried = maximum in body.ops and old in maximum.operands and body.ops[-1].operands[index] is maximum.result
    return maximum if begins and carried else None


def _ordered(pair: BackToBack, operands: list[Value]) -> list[Value]:
    """The carried operand first."""
    return sorted(operands, key=lambda value: value not in pair.loop.regions[0].arguments)


def _argument(value: Value) -> Value | None:
    """The argument of an exp2."""
    kinds = ("exp2", "fast_exp2")
    return value.owner.operands[0] if isinstance(value.owner, Unary) and value.owner.kind in kinds else None


def _is_relative(pair: BackToBack, factors: Value, maximum: Op, uses: Uses) -> bool:
    """Whether all that depends on the maximum is relative to it, as above."""
    body, last = pair.loop.regions[0], pair.loop.regions[0].ops[-1]
    old, new = _ordered(pair, maximum.operands)
    difference = _argument(factors)
    spread = _spread(maximum.result, uses)
    if difference is None or spread is None or set(uses[old]) != {maximum, difference.owner}:
        return False
    column, matrix = spread
    if set(uses[maximum.result]) != {difference.owner, column, last} or last.operands.count(maximum.result) != 1:
        return False
    arguments = _only(matrix, Binary, uses)
    powers = None if arguments is None else _only(arguments.result, Unary, uses)
    if arguments is None or powers is None or _argument(powers.result) is None:
        return False
    total = _total(pair, powers.result, factors, uses)
    if total is None or arguments.kind != "sub" or arguments.operands[1] is not matrix:
        return False
    if not _is_largest(new, arguments.operands[0]):
        return False
    carried = [body.arguments[1 + index] for index in (body.arguments.index(old) - 1, total, pair.carried)]
    independent = not any(_depends(value, {*carried, maximum.result}, body) for value in (new, arguments.operands[0]))
    return independent and not uses[pair.loop.results[body.arguments.index(old) - 1]] and _is_ratio(pair, total, uses)


def _is_largest(value: Value, matrix: Value) -> bool:
    """Whether a value for each row is the largest of its row of a matrix, or both have the same scalar factor."""
    row, scores = value.owner, matrix.owner
    if isinstance(row, Binary) and isinstance(scores, Binary) and row.kind == scores.kind == "mul":
        pairs = [(one, other) for one in (0, 1) for other in (0, 1) if _is_same(row.operands[one], scores.operands[other])]
        return any(_is_largest(row.operands[1 - one], scores.operands[1 - other]) for one, other in pairs)
    return isinstance(row, Reduce) and (row.kind, row.axis, row.operands[0]) == ("max", 1, matrix)


def _is_same(one: Value, other: Value) -> bool:
    """Whether all elements of both are one scalar, which is not a constant below zero."""
    first, second = one.owner, other.owner
    if isinstance(first, Constant) and isinstance(second, Constant):
        return first.value == second.value and first.value >= 0
    return (
        isinstance(first, Broadcast)
        and isinstance(second, Broadcast)
        and first.operands[0] is second.operands[0]
        and (not first.operands[0].tile.shape)
    )


def _scalars(value: Value) -> list[Value]:
    """The scalars of the launch, one for each row, that a value of `_is_largest` has as factors."""
    if not isinstance(value.owner, Binary):
        return []
    row = [operand for operand in value.owner.operands if isinstance(operand.owner, Broadcast)]
    return row + [scalar for operand in value.owner.operands for scalar in _scalars(operand)]


def _spread(value: Value, uses: Uses) -> tuple[Op, Value] | None:
    """The reshape of a value for each row to a column, and the matrix that repeats it, if each is the only one."""
    columns = [op for op in uses[value] if isinstance(op, Reshape)]
    matrix = _only(columns[0].result, Broadcast, uses) if len(columns) == 1 else None
    return None if matrix is None else (columns[0], matrix.result)


def _only(value: Value, kind: type[_Kind], uses: Uses) -> _Kind | None:
    """The only operation that uses a value, if it is of that kind and does so once."""
    (op, *others) = uses[value] or [None]
    return op if isinstance(op, kind) and not others else None


def _total(pair: BackToBack, powers: Value, factors: Value, uses: Uses) -> int | None:
    """The index of the carried sum `l * f + sum(p)`, if all that uses p is this and the second product."""
    body, last = pair.loop.regions[0], pair.loop.regions[0].ops[-1]
    sums = [op for op in uses[powers] if isinstance(op, Reduce) and op.kind == "sum" and op.axis == 1]
    casts = [op for op in uses[powers] if isinstance(op, Cast)]
    if len(sums) != 1 or len(casts) != 1 or len(uses[powers]) != 2 or uses[casts[0].result] != [pair.second.mma]:
        return None
    added = _only(sums[0].result, Binary, uses)
    if pair.second.mma.operands[0] is not casts[0].result:
        return None
    if added is None or added.kind != "add" or uses[added.result] != [last]:
        return None
    index = last.operands.index(added.result)
    scaled = next(value for value in added.operands if value is not sums[0].result)
    product, argument = scaled.owner, body.arguments[1 + index]
    if not isinstance(product, Binary) or product.kind != "mul" or set(product.operands) != {argument, factors}:
        return None
    if uses[argument] != [product] or uses[scaled] != [added]:
        return None
    column = _spread(factors, uses)
    users = {product, column[0]} if column else set[Op]()
    only_scales = set(uses[factors]) == users and isinstance(pair.loop.initial[index].owner, Constant)
    return index if only_scales and column and uses[column[1]] == [pair.second.mma.operands[2].owner] else None


def _is_ratio(pair: BackToBack, total: int, uses: Uses) -> bool:
    """Whether o * (c / l) is the only use of both after the loop."""
    share = _only(pair.loop.results[total], Binary, uses)
    if share is None or share.kind != "div" or not isinstance(share.operands[0].owner, Constant):
        return False
    spread = _spread(share.result, uses)
    product = _only(pair.loop.results[pair.carried], Binary, uses)
    if spread is None or product is None or product.kind != "mul" or uses[share.result] != [spread[0]]:
        return False
    return uses[spread[1]] == [product] and spread[1] in product.operands


def _depends(value: Value, values: set[Value], body: Block) -> bool:
    """Whether a value of the loop's body is computed from one of `values`."""
    pending, seen = [value], set[Value]()
    while pending:
        value = pending.pop()
        if value in values:
            return True
        if value in seen or not isinstance(value.owner, Op) or value.owner not in body.ops:
            continue
        seen.add(value)
        pending += [operand for op in Block(ops=[value.owner]).walk() for operand in op.operands]
    return False
