"""Ranges of integers that are converted from floats between known bounds: `clamp(v, 0.0, 7.0).astype(i32)` is 0 to 7.

What is used of `tilec/ir/SEMANTICS.md`: a minimum or maximum is one of its operands, and a number wins over NaN; `sigmoid` is
within [0, 1], and `tanh`, `sin`, `cos` and `erf` are within [-1, 1], or NaN for NaN; a conversion to integers goes toward zero,
ends at the ends of the range, and gives 0 for NaN. Bounds are numbers that the dtype of the float has, so that rounding, which
is monotone, does not cross them. Approximations (`fast_...`) may exceed their function's range: they have no bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, floor, inf, isfinite
from operator import add, mul, sub
from typing import Final

from tilec.ir.core import Function, Op, Value
from tilec.ir.facts.range_facts import Range, between
from tilec.ir.ops import Binary, Broadcast, Cast, Constant, Permute, Reduce, Reshape, Select, Unary
from tilec.ir.types import DType

_BOUNDED: Final[Mapping[str, tuple[int, int]]] = {
    "sigmoid": (0, 1), "tanh": (-1, 1), "sin": (-1, 1), "cos": (-1, 1), "erf": (-1, 1),
}  # fmt: skip
PART: Final = 16
"""Bounds are multiples of a sixteenth, which sums and products of two of them keep exact here."""
_CORNERS: Final[Mapping[str, Callable[[float, float], float]]] = {"add": add, "sub": sub, "mul": mul}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Every element that is a number is from `low` to `high`; elements may be NaN if `nan`."""

    low: float = -inf
    high: float = inf
    nan: bool = True

    def joined(self, other: Bounds) -> Bounds:
        """Bounds of an element that has these or those."""
        return Bounds(min(self.low, other.low), max(self.high, other.high), self.nan or other.nan)


def converted_floats(function: Function) -> dict[Value, Range]:
    """The range of each integer that is a bounded float, toward zero."""
    found: dict[Value, Range] = {}
    known: dict[Value, Bounds] = {}
    for op in function.body.walk():
        if len(op.results) != 1:
            continue
        bounds = _bounds(op, known)
        if bounds is None:
            continue
        dtype = op.result.tile.dtype
        if dtype.is_float:
            known[op.result] = bounds
        elif dtype.is_integer and isinstance(op, Cast):
            least, largest = dtype.integer_range()
            low, high = (int(max(least, min(largest, bound))) for bound in (bounds.low, bounds.high))
            found[op.result] = between(min(low, 0), max(high, 0)) if bounds.nan else between(low, high)
    return found


def _bounds(op: Op, known: Mapping[Value, Bounds]) -> Bounds | None:
    """Bounds of a float, or of the float that an integer is converted from; None if nothing is known."""
    operands = [known.get(value, Bounds()) for value in op.operands]
    match op:
        case Constant() if op.result.tile.dtype.is_float and isfinite(op.value):
            return _representable(Bounds(op.value, op.value, nan=False), op.result.tile.dtype)
        case Binary() if op.kind in ("min", "max") and op.result.tile.dtype.is_float:
            return _best(op.kind, *operands)
        case Binary() if op.kind in _CORNERS and op.result.tile.dtype.is_float:
            return _arithmetic(op.kind, (operands[0], operands[1]), op.result.tile.dtype)
        case Unary() if op.kind in _BOUNDED:
            return Bounds(*_BOUNDED[op.kind])
        case Select() if op.result.tile.dtype.is_float:
            return operands[1].joined(operands[2])
        case Reduce() if op.kind in ("min", "max"):
            return known.get(op.operands[0])
        case Broadcast() | Permute() | Reshape():
            return known.get(op.operands[0])
        case Cast() if op.result.tile.dtype.is_float:
            bounds = known.get(op.operands[0])
            return None if bounds is None else _representable(bounds, op.result.tile.dtype)
        case Cast():
            return known.get(op.operands[0])
        case _:
            return None


def _best(kind: str, left: Bounds, right: Bounds) -> Bounds:
    """Bounds of the smaller or larger of two: of both numbers, or of the only one."""
    best = min if kind == "min" else max
    found = Bounds(best(left.low, right.low), best(left.high, right.high), left.nan and right.nan)
    for one, other in ((left, right), (right, left)):
        if one.nan:
            found = found.joined(Bounds(other.low, other.high, nan=False))
    return found


def _arithmetic(kind: str, operands: tuple[Bounds, Bounds], dtype: DType) -> Bounds | None:
    """Bounds of a sum, difference or product, whose exact value lies between those of the bounds; None if one is infinite. That
    a product may be rounded together with a sum that uses it does not matter: that result lies between the sum's bounds."""
    left, right = operands
    ends = [(a, b) for a in (left.low, left.high) for b in (right.low, right.high)]
    if not all(isfinite(one) for end in ends for one in end):
        return None
    corners = [_CORNERS[kind](a, b) for a, b in ends]
    return _representable(Bounds(min(corners), max(corners), left.nan or right.nan), dtype)


def _representable(bounds: Bounds, dtype: DType) -> Bounds:
    """Bounds that are numbers of a dtype, no narrower than these."""
    return Bounds(_number(bounds.low, floor, dtype), _number(bounds.high, ceil, dtype), bounds.nan)


def _number(bound: float, outward: Callable[[float], int], dtype: DType) -> float:
    """The bound, or an integer or infinity beyond it. A dtype has all sixteenths and integers with no more bits than its
    significand."""
    limit = 1 << dtype.significand
    if not isfinite(bound) or (bound * PART == int(bound * PART) and abs(bound) * PART <= limit):
        return bound
    return outward(bound) if abs(outward(bound)) <= limit else inf if outward is ceil else -inf
