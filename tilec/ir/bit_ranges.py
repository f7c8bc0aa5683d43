"""Ranges and lowest bits of `and`, `or` and `xor` of integers of either sign, in two's complement without end.

In go inclusive ranges, or congruences `(modulus, rest)` as in `tilec.ir.range_facts.Range`; what comes out holds for any
members of the operands. Numbers below zero are treated by their complements, which are not below it: `~(a & b) == ~a | ~b`,
`~(a ^ b) == ~a ^ b`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

Ends = tuple[int, int]
BITWISE: Final[dict[str, Callable[[int, int], int]]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
"""What the kinds do to two integers."""
_ALL_BITS: Final = 64  # of every dtype; what a constant is known to


def bit_ends(kind: str, a: Ends, b: Ends) -> Ends:
    """Ends of a range that holds `a kind b`."""
    found = [_same_signs(kind, left, right) for left in _by_sign(a) for right in _by_sign(b)]
    return min(low for low, _ in found), max(high for _, high in found)


def _by_sign(a: Ends) -> list[Ends]:
    parts = [(a[0], min(a[1], -1)), (max(a[0], 0), a[1])]
    return [part for part in parts if part[0] <= part[1]]


def _same_signs(kind: str, a: Ends, b: Ends) -> Ends:
    """For operands that each have one sign."""
    if kind == "or":
        return _complement(_same_signs("and", _complement(a), _complement(b)))
    if kind == "xor":
        full = _full(max(*_magnitude(a), *_magnitude(b)))
        return (0, full) if (a[0] < 0) == (b[0] < 0) else _complement((0, full))
    if a[0] < 0 and b[0] < 0:  # ~(~a | ~b), of which at least all bits of either are set
        return _complement((max(~a[1], ~b[1]), _full(max(~a[0], ~b[0]))))
    return 0, min(high for low, high in (a, b) if low >= 0)


def _complement(a: Ends) -> Ends:
    return ~a[1], ~a[0]


def _magnitude(a: Ends) -> Ends:
    return _complement(a) if a[0] < 0 else a


def _full(value: int) -> int:
    """The largest number of as many bits."""
    return (1 << value.bit_length()) - 1


def known_bits(kind: str, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    """How many of the lowest bits of `a kind b` are known, and the number that they are."""
    bits, number = 0, 0
    counts = [_known(modulus) for modulus, _ in (a, b)]
    while bits < _ALL_BITS:
        left, right = ((rest >> bits) & 1 if bits < count else None for (_, rest), count in zip((a, b), counts, strict=True))
        bit = _bit(kind, left, right)
        if bit is None:
            break
        number |= bit << bits
        bits += 1
    return bits, number


def _known(modulus: int) -> int:
    """How many of the lowest bits a congruence fixes: as often as 2 divides the modulus; all of them for a constant."""
    return _ALL_BITS if modulus == 0 else (modulus & -modulus).bit_length() - 1


def _bit(kind: str, left: int | None, right: int | None) -> int | None:
    if kind == "and" and 0 in (left, right):
        return 0
    if kind == "or" and 1 in (left, right):
        return 1
    if left is None or right is None:
        return None
    return BITWISE[kind](left, right)
