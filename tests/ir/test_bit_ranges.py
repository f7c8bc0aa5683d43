"""Ranges and congruences of `&`, `|`, `^` and `>>` contain the results for all members of small operands, also negative
ones."""

from __future__ import annotations

import random

import pytest

from tilec.ir.expr import binary, const, sym
from tilec.ir.facts.bit_ranges import BITWISE
from tilec.ir.facts.range_facts import Range, arithmetic, between, exactly
from tilec.passes.analysis.ranges import expr_range


def members(fact: Range) -> list[int]:
    step = max(1, fact.modulus)
    return [value for value in range(fact.low, fact.high + 1) if (value - fact.rest) % step == 0 or fact.constant is not None]


def random_fact(r: random.Random) -> Range:
    modulus = r.choice([1, 1, 2, 3, 4, 6, 8, 12])
    first = r.randint(-20, 20)
    return between(first, first + modulus * r.randint(0, 9), modulus, first % modulus)


@pytest.mark.parametrize("kind", [*BITWISE, "shr"])
def test_every_result_is_a_member(kind: str) -> None:
    r = random.Random(kind)
    for _ in range(3000):
        a, b = random_fact(r), random_fact(r)
        if kind == "shr" and b.low < 0:
            continue
        found = arithmetic(kind, a, b, bits=64)
        assert found is not None
        for x in members(a):
            for y in members(b):
                value = x >> y if kind == "shr" else BITWISE[kind](x, y)
                assert found.low <= value <= found.high, (a, b, x, y, found)
                assert (value - found.rest) % found.modulus == 0 if found.modulus else value == found.rest, (a, b, x, y, found)


def test_results_are_as_narrow_as_masks_say() -> None:
    anything = Range(-(2**31), 2**31 - 1)
    assert arithmetic("and", anything, exactly(63)) == Range(0, 63)
    found = arithmetic("and", anything, exactly(-8))
    assert found is not None and (found.modulus, found.rest) == (8, 0)
    assert arithmetic("xor", Range(0, 63), exactly(5)) == Range(0, 63)
    assert arithmetic("xor", Range(-4, -1), Range(-4, -1)) == Range(0, 3)
    assert arithmetic("shr", Range(-8, 5), anything, bits=32) == Range(-8, 5)


def test_connectives_of_the_host_are_truth_values() -> None:
    either = binary("or", sym("a"), sym("b"))
    assert expr_range(either, {"a": exactly(4), "b": exactly(2)}) == Range(0, 1)
    assert expr_range(binary("and", either, const(1)), {"a": exactly(4), "b": exactly(2)}) == Range(0, 1)
