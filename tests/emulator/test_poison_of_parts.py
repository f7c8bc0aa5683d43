"""Poison of the quarters of a register, through packing and unpacking, against a list of booleans for each lane."""

from __future__ import annotations

from itertools import product

import numpy as np

from tilec.emulator.errors import POISON, Poison
from tilec.emulator.machine.halves import DEFINED, high, low, packed, quarter, whole

EVERY = list(product((False, True), repeat=4))
"""Which quarters are poisoned: a lane for each."""


def column(flags: list[bool]) -> Poison | None:
    return np.array(flags, np.uint8) * np.uint8(POISON) if any(flags) else None


def poisoned(poison: Poison | None, number: int) -> list[bool]:
    part = quarter(poison, number)
    return [False] * len(EVERY) if part is None else [bool(one) for one in part]


REGISTER = packed([column([lane[k] for lane in EVERY]) for k in range(4)])


def test_packed_keeps_each_quarter() -> None:
    for k in range(4):
        assert poisoned(REGISTER, k) == [lane[k] for lane in EVERY]
    assert REGISTER is not None
    assert [bool(one) for one in REGISTER] == [any(lane) for lane in EVERY]
    assert list(whole(REGISTER) != 0) == [any(lane) for lane in EVERY]  # type: ignore[arg-type]


def test_halves_have_two_quarters_for_each() -> None:
    for half, first in ((low(REGISTER), 0), (high(REGISTER), 2)):
        for k in range(4):
            assert poisoned(half, k) == [lane[first + k // 2] for lane in EVERY]


def test_two_halves_make_the_register_again() -> None:
    again = packed([low(REGISTER), high(REGISTER)])
    for k in range(4):
        assert poisoned(again, k) == [lane[k] for lane in EVERY]


def test_a_register_poisoned_as_a_whole_has_no_flags() -> None:
    every = np.full(len(EVERY), POISON, np.uint8)
    both = packed([every, every])
    assert both is not None and not (both & sum(DEFINED)).any()
    assert packed([None, None]) is None and packed([None] * 4) is None
