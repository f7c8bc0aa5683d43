"""Integer arithmetic on ranges with a congruence. Operands and results are `Range`, and every rule is sound: the operation on
any members of the operands gives a member of the result.

A `Range` has at least one member. For a contradiction, which no integer satisfies, `between` raises and `within` returns
None; the caller decides what it means. An empty range is never represented.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from tilec.ir.facts.bit_ranges import BITWISE, bit_bounds, known_bits
from tilec.ir.types import DType


class Range(NamedTuple):
    """`low <= v <= high`, and `v == rest` modulo `modulus` (0: `v` is exactly `rest`, 1: nothing known)."""

    low: int
    high: int
    modulus: int = 1
    rest: int = 0

    @property
    def constant(self) -> int | None:
        return self.low if self.low == self.high else None


def exactly(value: int) -> Range:
    """The fact of a constant."""
    return Range(value, value, 0, value)


def between(low: int, high: int, modulus: int = 1, rest: int = 0) -> Range:
    """A fact in normal form. ValueError if no integer satisfies it."""
    found = within(Range(low, high, modulus, rest), low, high)
    if found is None:
        raise ValueError(f"no integer from {low} to {high} is {rest} modulo {modulus}")
    return found


def within(fact: Range, low: int, high: int) -> Range | None:
    """The fact restricted to `low..high`; None if it has no members there."""
    low, high, modulus, rest = max(fact.low, low), min(fact.high, high), fact.modulus, fact.rest
    if modulus == 0:
        return exactly(rest) if low <= rest <= high else None
    if low + (rest - low) % modulus > high:  # the first member from `low` on
        return None
    return exactly(low) if low == high else Range(low, high, modulus, rest % modulus)


def of_dtype(dtype: DType) -> Range:
    """Every value of an integer or bool dtype; floats have no fact (their range is never read)."""
    return Range(*dtype.integer_range()) if not dtype.is_float else Range(-(2**63), 2**63)


def join(left: Range, right: Range) -> Range:
    """The union of both ranges, with the congruence that both satisfy."""
    modulus = gcd(gcd(left.modulus, right.modulus), abs(left.rest - right.rest))
    return between(min(left.low, right.low), max(left.high, right.high), modulus, left.rest)


def arithmetic(kind: str, a: Range, b: Range, bits: int = 0) -> Range | None:
    """Range of `a kind b` over the integers; `bits` is the width of the dtype, for shifts and `mulhi`; None for unknown
    kinds."""
    match kind:
        case "add":
            return between(a.low + b.low, a.high + b.high, gcd(a.modulus, b.modulus), a.rest + b.rest)
        case "sub":
            return between(a.low - b.high, a.high - b.low, gcd(a.modulus, b.modulus), a.rest - b.rest)
        case "mul":
            corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
            modulus = gcd(gcd(a.modulus * b.modulus, a.modulus * b.rest), b.modulus * a.rest)
            return between(min(corners), max(corners), modulus, a.rest * b.rest)
        case "floordiv":
            return _floordiv(a, b)
        case "mod":
            return _mod(a, b)
        case "min":
            return between(min(a.low, b.low), min(a.high, b.high), *_common(a, b))
        case "max":
            return between(max(a.low, b.low), max(a.high, b.high), *_common(a, b))
        case "and" | "or" | "xor":
            return bitwise(kind, a, b)
        case "mulhi" if bits:
            corners = [x * y >> bits for x in (a.low, a.high) for y in (b.low, b.high)]  # a shift keeps the order of products
            return between(min(corners), max(corners))
        case "shl" | "shr" if bits:
            return _shift(kind, a, b, bits)
        case _:
            return None


def _shift(kind: str, a: Range, b: Range, bits: int) -> Range:
    """An amount outside the width shifts everything out: `shl` gives zero, `shr` zero or copies of the sign."""
    candidates: list[int] = []
    if b.low < bits and b.high >= 0:
        amounts = max(b.low, 0), min(b.high, bits - 1)
        candidates += [x << amount if kind == "shl" else x >> amount for x in (a.low, a.high) for amount in amounts]
    if b.low < 0 or b.high >= bits:
        candidates += [0] if kind == "shl" else [a.low >> bits, a.high >> bits]
    return between(min(candidates), max(candidates))


def bitwise(kind: str, a: Range, b: Range) -> Range:
    """Range of `a kind b` in two's complement: `and`, `or`, `xor`."""
    if a.constant is not None and b.constant is not None:
        return exactly(BITWISE[kind](a.constant, b.constant))
    bounds = bit_bounds(kind, (a.low, a.high), (b.low, b.high))
    count, rest = known_bits(kind, (a.modulus, a.rest), (b.modulus, b.rest))
    return between(*bounds, 1 << count, rest)


def unary(kind: str, a: Range, dtype: DType) -> Range | None:
    """Range of `kind a` over the integers, for elements of an integer dtype; None for unknown kinds."""
    if kind == "neg":
        return between(-a.high, -a.low, a.modulus, -a.rest)
    if kind == "not":
        sum_of_limits = sum(dtype.integer_range())  # -1 of a signed type, the largest number of an unsigned one
        return between(sum_of_limits - a.high, sum_of_limits - a.low, a.modulus, sum_of_limits - a.rest)
    if kind == "abs":
        low = 0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high))
        return between(low, max(abs(a.low), abs(a.high)))
    return None


def truth(a: Range) -> Range:
    """Range of `v != 0`."""
    never_zero = a.low > 0 or a.high < 0 or (a.modulus > 1 and a.rest != 0)
    return exactly(1) if never_zero else exactly(0) if a.constant == 0 else Range(0, 1)


def reduction(kind: str, a: Range, extent: int) -> Range:
    """Range of a reduction over an axis of `extent` elements, over the integers."""
    if kind.startswith("arg"):
        return between(0, extent - 1)
    return between(a.low * extent, a.high * extent) if kind == "sum" else a


def _common(a: Range, b: Range) -> tuple[int, int]:
    return gcd(gcd(a.modulus, b.modulus), abs(a.rest - b.rest)), a.rest


def _floordiv(a: Range, b: Range) -> Range:
    if b.low < 1:
        magnitude = max(abs(a.low), abs(a.high)) + 1
        return Range(-magnitude, magnitude)
    corners = [x // y for x in (a.low, a.high) for y in (b.low, b.high)]
    d = b.constant
    if d and a.modulus and a.modulus % d == 0:
        return between(min(corners), max(corners), a.modulus // d, a.rest // d)
    return between(min(corners), max(corners))


def _mod(a: Range, b: Range) -> Range:
    if b.low < 1:
        return between(min(b.low, 0), max(b.high, 0))
    d = b.constant
    if a.low >= 0 and a.high < b.low:
        return a
    if d and a.modulus and a.modulus % d == 0:
        return exactly(a.rest % d)
    modulus = gcd(a.modulus, d) if d else 1
    return between(0, b.high - 1, modulus, a.rest)
