"""What operations on floats give, as far as that is the same for every dtype and needs no rounding.

A float is known if it is an integer from -8 to 8, which every float dtype has, or an infinity; as an integer, which stands for
an infinity with `INFINITE`. All else is None: other numbers, NaN, and -0, which a comparison takes for 0 and a sort does not.
"""

from __future__ import annotations

from math import isinf
from typing import Final

from tilec.ir.facts.meaning import integer_cast
from tilec.ir.ops import Reduce
from tilec.ir.types import DType
from tilec.passes.prover.replayed_tiles import Tile, element_rows

LARGEST: Final = 8
INFINITE: Final = 1 << 128
"""What stands for infinity: larger than every integer of a dtype, so that a cast gives the end of its range."""


def as_number(value: float) -> int | None:
    """A constant; None if it is not one of the known numbers."""
    if isinf(value):
        return INFINITE if value > 0 else -INFINITE
    if value == 0 and str(float(value)).startswith("-"):
        return None
    return int(value) if abs(value) <= LARGEST and value == int(value) else None


def float_binary(kind: str, left: int | None, right: int | None) -> int | None:
    """`left kind right`, where the result is exact."""
    if left is None or right is None:
        return None
    match kind:
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
    if value is None:
        return None
    return abs(value) if kind == "abs" else -value if kind == "neg" and value else None


def float_cast(value: int | None, source: DType, target: DType) -> int | None:
    """A conversion from or to floats: to integers, with the ends of their range for numbers beyond."""
    if value is None:
        return None
    if target.is_float:
        return _exact(value)
    if target.kind == "b":
        return int(value != 0)
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


def _exact(result: int, *operands: int) -> int | None:
    return result if all(abs(a) <= LARGEST for a in (result, *operands)) else None
