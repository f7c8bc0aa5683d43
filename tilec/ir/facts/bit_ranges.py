"""Ranges and known low bits of `and`, `or` and `xor` of signed integers, in two's complement of infinite width.

In: inclusive ranges, or congruences `(modulus, rest)` as in `tilec.ir.facts.range_facts.Range`; the result is true of any
members of the operands. Negative numbers are handled through their complements, which are not negative: `~(a & b) == ~a | ~b`,
`~(a ^ b) == ~a ^ b`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

Bounds = tuple[int, int]
BITWISE: Final[dict[str, Callable[[int, int], int]]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
"""The kinds on two integers."""
_ALL_BITS: Final = 64  # at least the width of every dtype; all these bits of a constant are known


def bit_bounds(kind: str, a: Bounds, b: Bounds) -> Bounds:
    """Ends of a range that contains `a kind b`."""
    bounds = [_bounds_of_same_signs(kind, left, right) for left in _by_sign(a) for right in _by_sign(b)]
    return min(low for low, _ in bounds), max(high for _, high in bounds)


def _by_sign(a: Bounds) -> list[Bounds]:
    parts = [(a[0], min(a[1], -1)), (max(a[0], 0), a[1])]
    return [part for part in parts if part[0] <= part[1]]


def _bounds_of_same_signs(kind: str, a: Bounds, b: Bounds) -> Bounds:
    """For operands whose members all have one sign."""
    if kind == "or":
        return _complement(_bounds_of_same_signs("and", _complement(a), _complement(b)))
    if kind == "xor":
        all_ones = _all_ones(max(*_magnitude(a), *_magnitude(b)))
        return (0, all_ones) if (a[0] < 0) == (b[0] < 0) else _complement((0, all_ones))
    if a[0] < 0 and b[0] < 0:  # ~(~a | ~b): the disjunction is at least as large as either part
        return _complement((max(~a[1], ~b[1]), _all_ones(max(~a[0], ~b[0]))))
    return 0, min(high for low, high in (a, b) if low >= 0)


def _complement(a: Bounds) -> Bounds:
    return ~a[1], ~a[0]


def _magnitude(a: Bounds) -> Bounds:
    return _complement(a) if a[0] < 0 else a


def _all_ones(value: int) -> int:
    """The largest number with the bit length of `value`."""
    return (1 << value.bit_length()) - 1


def known_bits(kind: str, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    """The number of low bits of `a kind b` that are known, and their value."""
    bits, value = 0, 0
    counts = [_known_low_bits(modulus) for modulus, _ in (a, b)]
    while bits < _ALL_BITS:
        left, right = ((rest >> bits) & 1 if bits < count else None for (_, rest), count in zip((a, b), counts, strict=True))
        bit = _bit(kind, left, right)
        if bit is None:
            break
        value |= bit << bits
        bits += 1
    return bits, value


def _known_low_bits(modulus: int) -> int:
    """Number of low bits that a congruence fixes: the multiplicity of 2 in the modulus; all of them for a constant."""
    return _ALL_BITS if modulus == 0 else (modulus & -modulus).bit_length() - 1


def _bit(kind: str, left: int | None, right: int | None) -> int | None:
    if kind == "and" and 0 in (left, right):
        return 0
    if kind == "or" and 1 in (left, right):
        return 1
    if left is None or right is None:
        return None
    return BITWISE[kind](left, right)
