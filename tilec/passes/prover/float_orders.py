"""Comparisons of one float with several constants, which are not independent: `v > 0` is never true where `v >= 0` is false.

Constants `c[0] < c[1] < ... < c[k - 1]` part the floats into `2 * k + 2` classes: below `c[0]`, equal to it, between it and
`c[1]`, and so on; above the last one; and NaN. The class of a float is an unknown integer: `2 * i` from `c[i - 1]` to `c[i]`,
`2 * i + 1` for `c[i]` itself (0 and -0 are equal), `2 * k + 1` for NaN. A comparison with one of the constants is exactly one
of the class: with NaN it is false, but `!=` is true (`tilec/ir/SEMANTICS.md`).

Constants count if they are integers that every dtype has, so that no two of them are rounded to one number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tilec.ir.core import Function, Value
from tilec.ir.ops import Broadcast, Compare, Constant, Reshape
from tilec.passes.prover import terms
from tilec.passes.prover.terms import Formula, Poly

LARGEST: Final = 8  # every float dtype has the integers from -8 to 8
_MIRRORED: Final = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}

Orders = dict[Value, tuple[int, ...]]
"""For each float that is compared in several ways, the constants in ascending order."""


def float_orders(function: Function, same: Mapping[Value, Value]) -> Orders:
    """The floats of a function that are compared with constants in several ways. `same` has the first of equal values."""
    found: dict[Value, set[tuple[str, int]]] = {}
    for op in function.body.walk():
        if isinstance(op, Compare) and (parts := compared(op, same)) is not None:
            value, _, constant = parts
            is_first = same.get(op.operands[0], op.operands[0]) is value
            found.setdefault(value, set()).add((op.kind if is_first else f"constant {op.kind}", constant))
    several = {value: ways for value, ways in found.items() if len(ways) > 1}
    return {value: tuple(sorted({constant for _, constant in ways})) for value, ways in several.items()}


def compared(op: Compare, same: Mapping[Value, Value]) -> tuple[Value, str, int] | None:
    """The float, the kind of the comparison and the constant; None for other comparisons."""
    left, right = op.operands
    if not left.tile.dtype.is_float:
        return None
    for value, other, kind in ((left, right, op.kind), (right, left, _MIRRORED[op.kind])):
        constant = _constant(other)
        if constant is not None and _constant(value) is None:
            return same.get(value, value), kind, constant
    return None


def class_count(constants: tuple[int, ...]) -> int:
    """The number of classes of floats."""
    return 2 * len(constants) + 2


def holds(parts: tuple[Value, str, int], orders: Orders, of_float: Poly) -> Formula:
    """A comparison with one of the constants, as a condition of the class of a float."""
    value, kind, constant = parts
    return condition(kind, constant, orders[value], of_float)


def condition(kind: str, constant: int, constants: tuple[int, ...], of_float: Poly) -> Formula:
    """When a comparison with one of the constants is true."""
    equal, above = 2 * constants.index(constant) + 1, 2 * len(constants)
    match kind:
        case "eq":
            return terms.eq(of_float, equal)
        case "ne":
            return terms.ne(of_float, equal)
        case "lt":
            return terms.lt(of_float, equal)
        case "le":
            return terms.lt(of_float, equal + 1)
        case "gt":
            return terms.conjunction((terms.ge(of_float, equal + 1), terms.lt(of_float, above + 1)))
        case _:
            return terms.conjunction((terms.ge(of_float, equal), terms.lt(of_float, above + 1)))


def _constant(value: Value) -> int | None:
    """The constant that every element of a tile is, if it is an integer that every dtype has."""
    while isinstance(value.owner, Broadcast | Reshape):
        value = value.owner.operands[0]
    if not isinstance(value.owner, Constant):
        return None
    number = value.owner.value
    return int(number) if abs(number) <= LARGEST and number == int(number) else None
