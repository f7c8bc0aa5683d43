"""`&`, `|`, `^` and shifts of integers as terms: exact if one operand is a constant or has few values.

All cases use one identity. The `n` bits of `x` from bit `s` on are `2**s * (x // 2**s % 2**n)`, for numbers of either sign
in two's complement of infinite width, since `//` rounds down. A constant mask is a sum of such runs of bits; a negative mask
is all bits except those of its complement. Also `x | c == x + c - (x & c)` and `x ^ c == x + c - 2 * (x & c)`.

In: an operation, the terms of its operands, and ranges that are true of these in every launch. Out: the result over
unbounded integers; a separate obligation states that it fits its type.
"""

from __future__ import annotations

from collections.abc import Callable

from tilec.ir.facts.range_facts import Range
from tilec.passes.prover import terms
from tilec.passes.prover.atoms import Atoms
from tilec.passes.prover.terms import Poly

BIT_KINDS = frozenset({"and", "or", "xor", "shl", "shr"})
RUNS = 4  # limit on the runs of ones in a mask, each of which needs two quotients
VALUES = 16  # limit on the values of an operand for a case distinction: lanes of a swizzle


def bit_term(atoms: Atoms, kind: str, bits: int, operands: list[Poly], ranges: list[Range]) -> Poly | None:
    """`left kind right` for `and`, `or`, `xor`, `shl` and `shr` of integers of `bits` bits; None if it cannot be expressed."""
    left, right = operands
    if kind in ("shl", "shr"):
        return _by_value(atoms, lambda amount: _shifted(atoms, kind, bits, left, amount), right, ranges[1])
    if left == right:
        return terms.ZERO if kind == "xor" else left
    fewest = min((0, 1), key=lambda index: (operands[index].constant is None, ranges[index].high - ranges[index].low))
    other = operands[1 - fewest]
    return _by_value(atoms, lambda value: _with_constant(atoms, kind, other, value), operands[fewest], ranges[fewest])


def _by_value(atoms: Atoms, result: Callable[[int], Poly | None], operand: Poly, known: Range) -> Poly | None:
    """The result as a case distinction on the value of the operand; None if the operand has more than `VALUES` values."""
    if operand.constant is not None:
        return result(operand.constant)
    step = max(1, known.modulus)
    first = known.low + (known.rest - known.low) % step
    if (known.high - first) // step >= VALUES:
        return None
    cases = [(terms.eq(operand, value), result(value)) for value in range(first, known.high + 1, step)]
    exact = [(condition, found) for condition, found in cases if found is not None]
    return atoms.choice(exact) if len(exact) == len(cases) else None


def _shifted(atoms: Atoms, kind: str, bits: int, left: Poly, amount: int) -> Poly:
    """An amount outside the width shifts everything out, which leaves zero or copies of the sign."""
    inside = 0 <= amount < bits
    if kind == "shl":
        return left * (1 << amount) if inside else terms.ZERO
    return atoms.quotient(left, terms.const(1 << (amount if inside else bits)))


def _with_constant(atoms: Atoms, kind: str, operand: Poly, constant: int) -> Poly | None:
    common = _masked(atoms, operand, constant)
    if common is None or kind == "and":
        return common
    return operand + constant - common * (1 if kind == "or" else 2)


def _masked(atoms: Atoms, operand: Poly, mask: int) -> Poly | None:
    """`operand & mask`; None if the mask has too many runs of ones."""
    if mask < 0:
        cleared = _masked(atoms, operand, ~mask)
        return None if cleared is None else operand - cleared
    found, bit = terms.ZERO, 0
    for _ in range(RUNS):
        if not mask >> bit:
            return found
        start = bit + _ones(~mask >> bit)
        bit = start + _ones(mask >> start)
        below, above = (atoms.quotient(operand, terms.const(1 << end)) * (1 << end) for end in (start, bit))
        found = found + below - above
    return None if mask >> bit else found


def _ones(number: int) -> int:
    """Number of trailing one bits."""
    return (~number & (number + 1)).bit_length() - 1
