"""Comparisons of floats that are not independent: `v > 0` is never true where `v >= 0` is false, nor `v > w` where `v <= w` is.

Constants `c[0] < c[1] < ... < c[k - 1]` part the floats into `2 * k + 2` classes: below `c[0]`, equal to it, between it and
`c[1]`, and so on; above the last one; and NaN. The class of a float is an unknown integer: `2 * i` from `c[i - 1]` to `c[i]`,
`2 * i + 1` for `c[i]` itself (0 and -0 are equal), `2 * k + 1` for NaN. A comparison with one of the constants is exactly one
of the class: with NaN it is false, but `!=` is true (`tilec/ir/SEMANTICS.md`).

Constants count if the dtype of the comparison has them exactly, so that no two of them are rounded to one number. Other pairs
of floats have a class too, numbered as those of one constant are: the first is below the second, equal to it, above it, or one
of them is NaN.

A comparison that is the only one of its float or of its pair stays an unknown of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import frexp, isfinite
from typing import Final

from tilec.ir.core import Function, Value
from tilec.ir.ops import Broadcast, Compare, Constant, Reshape
from tilec.ir.types import DType
from tilec.passes.prover import terms
from tilec.passes.prover.terms import Formula, Poly

SMALLEST_BIT: Final = -8
"""Constants are multiples of this power of two: smaller numbers may be subnormal in some dtype."""
_MIRRORED: Final = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}

Other = Value | str
"""What a float is compared with: another float, or the text of a constant that its dtype may not have."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """`value kind constant`, or `value kind other` if there is no such constant."""

    value: Value
    kind: str
    constant: float | None
    other: Other = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two floats that several comparisons compare."""

    left: Value
    right: Other
    number: int

    @property
    def constant(self) -> float | None:
        """What its float is compared with, if that is a constant."""
        return None if isinstance(self.right, Value) else float(self.right.split()[1])


@dataclass(frozen=True, slots=True)
class Orders:
    """For each float that several comparisons compare with constants, these in ascending order; and the pairs of others."""

    constants: Mapping[Value, tuple[float, ...]] = field(default_factory=dict[Value, "tuple[float, ...]"])
    pairs: Mapping[tuple[Value, Other], Pair] = field(default_factory=dict[tuple[Value, Other], Pair])


def float_orders(function: Function, same: Mapping[Value, Value]) -> Orders:
    """What the comparisons of floats of a function have in common. `same` has the first of equal values."""
    by_constant: dict[Value, list[float]] = {}
    by_pair: dict[tuple[Value, Other], int] = {}
    for op in function.body.walk():
        found = compared(op, same) if isinstance(op, Compare) and op.result not in same else None
        if found is None:
            continue
        if found.constant is not None:
            by_constant.setdefault(found.value, []).append(found.constant)
            continue
        mirrored = (found.other, found.value) if isinstance(found.other, Value) else None
        key = mirrored if mirrored in by_pair else (found.value, found.other)
        by_pair[key] = by_pair.get(key, 0) + 1
    several = {value: tuple(sorted(set(used))) for value, used in by_constant.items() if len(used) > 1}
    pairs = [key for key, uses in by_pair.items() if uses > 1]
    return Orders(several, {key: Pair(*key, number) for number, key in enumerate(pairs)})


def compared(op: Compare, same: Mapping[Value, Value]) -> Comparison | None:
    """What a comparison of floats compares; None for others, and for one of a float with itself."""
    left, right = op.operands
    dtype = left.tile.dtype
    if not dtype.is_float:
        return None
    sides = ((left, right, op.kind), (right, left, _MIRRORED[op.kind]))
    for value, other, kind in sides:
        number = _constant(other)
        if number is not None and _constant(value) is None:
            first = same.get(value, value)
            if is_exact(number, dtype):
                return Comparison(first, kind, number + 0.0)  # -0 compares as 0
            return Comparison(first, kind, None, f"{dtype} {number!r}")
    first, second = same.get(left, left), same.get(right, right)
    return Comparison(first, op.kind, None, second) if first is not second and _constant(left) is None else None


def class_count(constants: tuple[float, ...]) -> int:
    """The number of classes of floats."""
    return 2 * len(constants) + 2


def pair_of(found: Comparison, orders: Orders) -> tuple[Pair, str] | None:
    """The pair of a comparison and the kind of the comparison of its first float with its second one."""
    pair = orders.pairs.get((found.value, found.other))
    if pair is not None:
        return pair, found.kind
    pair = orders.pairs.get((found.other, found.value)) if isinstance(found.other, Value) else None
    return (pair, _MIRRORED[found.kind]) if pair is not None else None


def condition(kind: str, constant: float, constants: tuple[float, ...], of_float: Poly) -> Formula:
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


def _constant(value: Value) -> float | None:
    """The constant that every element of a tile is."""
    while isinstance(value.owner, Broadcast | Reshape):
        value = value.owner.operands[0]
    return float(value.owner.value) if isinstance(value.owner, Constant) else None


def is_exact(number: float, dtype: DType) -> bool:
    """Whether a dtype has a number as it is."""
    if not isfinite(number) or abs(number) > dtype.largest:
        return False
    fraction, _ = frexp(number)  # from 0.5 to 1
    return (fraction * 2**dtype.significand).is_integer() and (number * 2**-SMALLEST_BIT).is_integer()
