"""Condition-sensitive ranges of `where(condition, a, b)`.

`where(c > 0, c - 1, 3)` stays in `0..4` for `c` in `0..4`, which the ranges of `c - 1` and `3` alone do not show. Each arm is
evaluated again with operand ranges narrowed by the condition. This follows element-wise operations only, because only there an
element of the arm depends on the element of the same index that the condition tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilec.ir.core import Op, Value
from tilec.ir.facts.range_facts import Range, join, within
from tilec.ir.ops import Binary, Broadcast, Cast, Compare, Select, Unary

Facts = Mapping[Value, Range]
DEPTH = 4  # operations that the evaluation of an arm follows
_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def selected(op: Select, facts: Facts, transfer: Callable[[Op, list[Range]], Range]) -> Range:
    """Range of a selection. `facts` has the operands of every operation before it; `transfer` is the transfer function of
    element-wise operations."""
    condition, *arms = op.operands
    found: Range | None = None
    for arm, truth in zip(arms, (True, False), strict=True):
        inside = narrowed(condition, truth, facts, {})
        if inside is None:
            continue  # never selected
        range_ = _reevaluated(arm, facts, inside, transfer, DEPTH)
        found = range_ if found is None else join(found, range_)
    return found if found is not None else join(facts[arms[0]], facts[arms[1]])


def narrowed(condition: Value, truth: bool, facts: Facts, known: dict[Value, Range]) -> dict[Value, Range] | None:
    """Ranges of values at the elements where the condition equals `truth`, added to `known`; None if there are no such
    elements."""
    owner = _scalar_of_broadcast(condition).owner
    if isinstance(owner, Unary) and owner.kind == "not":
        return narrowed(owner.operands[0], not truth, facts, known)
    if isinstance(owner, Binary) and owner.kind == ("and" if truth else "or"):
        for part in owner.operands:
            inside = narrowed(part, truth, facts, known)
            if inside is None:
                return None
            known = inside
        return known
    if not isinstance(owner, Compare) or not owner.operands[0].tile.dtype.is_integer:
        return known
    kind = owner.kind if truth else _OPPOSITE[owner.kind]
    left, right = owner.operands
    for value, other, relation in ((left, right, kind), (right, left, _MIRRORED[kind])):
        fact = known.get(_scalar_of_broadcast(value)) or facts.get(_scalar_of_broadcast(value)) or facts.get(value)
        against = known.get(_scalar_of_broadcast(other)) or facts.get(_scalar_of_broadcast(other)) or facts.get(other)
        if fact is None or against is None:
            continue
        inside = within(fact, *_limits(fact, relation, against))
        if inside is None:
            return None
        known = {**known, _scalar_of_broadcast(value): inside}
    return known


def _limits(fact: Range, relation: str, other: Range) -> tuple[int, int]:
    low, high = fact.low, fact.high
    if relation in ("lt", "le", "eq"):
        high = min(high, other.high - (relation == "lt"))
    if relation in ("gt", "ge", "eq"):
        low = max(low, other.low + (relation == "gt"))
    if relation == "ne" and other.constant is not None:
        low += low == other.low
        high -= high == other.low
    return low, high


def _scalar_of_broadcast(value: Value) -> Value:
    """The scalar of which a value is the broadcast, else the value."""
    owner = value.owner
    return owner.operands[0] if isinstance(owner, Broadcast) and not owner.operands[0].tile.rank else value


def _reevaluated(
    value: Value, facts: Facts, narrowed: Facts, transfer: Callable[[Op, list[Range]], Range], depth: int
) -> Range:
    scalar = _scalar_of_broadcast(value)
    value = scalar if scalar in narrowed or scalar in facts else value
    owner = value.owner
    if value in narrowed:
        return narrowed[value]
    if depth == 0 or not isinstance(owner, Binary | Unary | Cast):
        return facts[value]
    if not value.tile.dtype.is_integer or any(
        (operand not in facts and operand not in narrowed) or operand.tile.dtype.is_float for operand in owner.operands
    ):
        return facts[value]
    reevaluated = transfer(owner, [_reevaluated(operand, facts, narrowed, transfer, depth - 1) for operand in owner.operands])
    # Both are valid; the narrower one is kept.
    return reevaluated if reevaluated.high - reevaluated.low < facts[value].high - facts[value].low else facts[value]
