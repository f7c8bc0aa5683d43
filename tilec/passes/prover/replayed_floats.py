"""What operations on floats give, as far as that is the same for every dtype and needs no rounding.

A float is known if it is an integer from -8 to 8, which every float dtype has, or an infinity; as an integer, which stands for
an infinity with `INFINITE`, and for a NaN with `NAN`. All else is None: other numbers, and -0, which a comparison takes for 0
and a sort does not.
"""

from __future__ import annotations

import operator
from math import isinf, isnan
from typing import Final

from tilec.ir.core import Value
from tilec.ir.facts.meaning import integer_cast
from tilec.ir.ops import Broadcast, Constant, Reduce, Reshape
from tilec.ir.types import DType
from tilec.passes.prover.replayed_tiles import Tile, element_rows

LARGEST: Final = 8
INFINITE: Final = 1 << 128
"""What stands for infinity: larger than every integer of a dtype, so that a cast gives the end of its range."""
NAN: Final = 1 << 129
"""What stands for NaN: above infinity, as sorts have it."""
_COMPARE = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip


def as_number(value: float) -> int | None:
    """A constant; None if it is not one of the known numbers."""
    if isnan(value):
        return NAN
    if isinf(value):
        return INFINITE if value > 0 else -INFINITE
    if value == 0 and str(float(value)).startswith("-"):
        return None
    return int(value) if abs(value) <= LARGEST and value == int(value) else None


def constant_of(value: Value) -> float | None:
    """The float constant that every element of a tile is; 0 for -0, which compare alike."""
    while isinstance(value.owner, Broadcast | Reshape):
        value = value.owner.operands[0]
    return float(value.owner.value) + 0.0 if isinstance(value.owner, Constant) else None


def constant_next_to(constant: float, number: int | None, dtype: DType) -> float | None:
    """A constant that a known number is compared with; None if rounding it may have put it on the other side."""
    known = as_number(constant)
    if known is not None or number is None:
        return known
    error = abs(constant) * 2.0 ** (1 - dtype.significand) + 2.0**-8  # the second for numbers that may be subnormal
    is_apart = abs(constant) <= dtype.largest and abs(number - constant) > error
    return constant if is_apart else None


def compared(kind: str, left: float | None, right: float | None) -> int | None:
    """`left kind right`, of integers or floats: with a NaN it is false, but `!=` is true."""
    if left is None or right is None:
        return None
    return int(kind == "ne") if NAN in (left, right) else int(_COMPARE[kind](left, right))


def float_binary(kind: str, left: int | None, right: int | None) -> int | None:
    """`left kind right`, where the result is exact."""
    if left is None or right is None:
        return None
    match kind:
        case "max" | "min" if NAN in (left, right):
            return right if left == NAN else left  # a number wins
        case "max":
            return max(left, right)
        case "min":
            return min(left, right)
        case "add":
            return _exact(left + right, left, right)
        case "sub":
            return _exact(left - right, left, right)
        case "mul" if left > 0 and right > 0:
            return _exact(left * right, left, right)
        case _:
            return None


def float_unary(kind: str, value: int | None) -> int | None:
    """A function of a float, where the result is exact."""
    if value is None or value == NAN:
        return value if kind in ("abs", "neg") else None
    return abs(value) if kind == "abs" else -value if kind == "neg" and value else None


def float_cast(value: int | None, source: DType, target: DType) -> int | None:
    """A conversion from or to floats: to integers, with the ends of their range for numbers beyond."""
    if value is None:
        return None
    if target.is_float:
        return value if value == NAN else _exact(value)
    if target.kind == "b":
        return int(value != 0)
    if value == NAN:
        return 0
    low, high = target.integer_range()
    return max(low, min(high, value)) if source.is_float else integer_cast(value, target)


def float_sum(op: Reduce, tile: Tile) -> Tile:
    """Sums along an axis whose partial sums are exact in any order."""
    found: Tile = []
    for row in element_rows(op, tile):
        known = [a for a in row if a is not None]
        is_exact = len(known) == len(row) and sum(map(abs, known)) <= LARGEST
        found.append(sum(known) if is_exact else None)
    return found


def float_best(op: Reduce, tile: Tile) -> Tile:
    """The largest or smallest along an axis, or its position, the lowest among equals; a NaN never wins over a number."""
    found: Tile = []
    for row in element_rows(op, tile):
        numbers = [a for a in row if a is not None and a != NAN]
        if None in row:
            found.append(None)
        elif not numbers:
            found.append(0 if op.kind.startswith("arg") else NAN)
        else:
            best = max(numbers) if op.kind.endswith("max") else min(numbers)
            found.append(row.index(best) if op.kind.startswith("arg") else best)
    return found


def _exact(result: int, *operands: int) -> int | None:
    return result if all(abs(a) <= LARGEST for a in (result, *operands)) else None
