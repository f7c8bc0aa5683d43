"""Facts to try range rules on: ranges at the edges of a dtype with congruences, and members of each.

In: a dtype, a random generator. Out: non-empty `Range`s that do not come from the rules under test.
"""

from __future__ import annotations

import random

from tilec.ir.facts.range_facts import Range
from tilec.ir.types import DTYPES, DType, boolean

INTEGERS = tuple(dtype for dtype in DTYPES.values() if dtype.is_integer)
WHOLE = (*INTEGERS, boolean)


def edge_numbers(dtype: DType) -> list[int]:
    """Numbers of a dtype at which a rule may go wrong: its ends, sign changes, the widths of all dtypes, powers of two."""
    low, high = dtype.integer_range()
    near = {n + d for n in (0, low, high, 8, 16, 32, 40, 64, low // 2, high // 2) for d in (-2, -1, 0, 1, 2)}
    return sorted(n for n in near | {n // 3 for n in near} if low <= n <= high)


def facts(dtype: DType, r: random.Random, count: int) -> list[Range]:
    """`count` facts: constants, intervals between edge numbers, and some of these with a congruence that has members."""
    numbers = edge_numbers(dtype)
    found: list[Range] = []
    while len(found) < count:
        low, high = sorted((r.choice(numbers), r.choice(numbers)))
        modulus = r.choice((1, 1, 2, 3, 4, 8, 12, 64))
        rest = r.choice((low, high)) % modulus
        found.append(Range(low, low, 0, low) if low == high else Range(low, high, modulus, rest))
    return found


def members(fact: Range, r: random.Random, count: int = 6) -> list[int]:
    """Some members, including the first, the last and those around zero; all of them if there are few."""
    if fact.modulus == 0:
        return [fact.rest]
    first = fact.low + (fact.rest - fact.low) % fact.modulus
    last = fact.high - (fact.high - fact.rest) % fact.modulus
    if (last - first) // fact.modulus < 2 * count:
        return list(range(first, last + 1, fact.modulus))
    drawn = [first + fact.modulus * r.randint(0, (last - first) // fact.modulus) for _ in range(count)]
    near = (fact.rest % fact.modulus + fact.modulus * k for k in (-2, -1, 0, 1))
    return sorted({first, last, first + fact.modulus, *drawn, *(n for n in near if first <= n <= last)})


def inside(fact: Range, value: int) -> bool:
    """Whether a value is a member."""
    if not fact.low <= value <= fact.high:
        return False
    return value == fact.rest if fact.modulus == 0 else (value - fact.rest) % fact.modulus == 0
