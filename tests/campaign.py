"""Which cases of a campaign the default run takes, one of each kind; `pytest -m campaign`, which the gate runs too, the others.

A campaign goes through all there is of something: every size of every kernel, every mutant, a thousand random programs. What
the default run takes of it must meet each kind that the whole meets, so that a mistake of a kind is seen there first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def parameters(case: Any, here: bool) -> ParameterSet:
    """A case, a tuple of several values or one, as pytest takes it; `here`: in the default run."""
    values = tuple(case) if isinstance(case, tuple | list) else (case,)
    return pytest.param(*values, marks=() if here else pytest.mark.campaign)


def chosen(cases: Iterable[Any], here: Callable[[Any], bool]) -> list[ParameterSet]:
    """All cases, in order; those that `here` says are of the default run."""
    return [parameters(case, here(case)) for case in cases]


def one_of_each(cases: Iterable[Any], *kinds: Callable[[Any], Hashable]) -> list[ParameterSet]:
    """All cases, in order; of the default run are those that are the first of what one of `kinds` says of them."""
    met: set[tuple[int, Hashable]] = set()
    found: list[ParameterSet] = []
    for case in cases:
        mine = {(number, kind(case)) for number, kind in enumerate(kinds)}
        found.append(parameters(case, not mine <= met))
        met |= mine
    return found


def first(count: int, cases: Sequence[Any]) -> list[ParameterSet]:
    """All cases, in order; of the default run are the first ones, `count` of them."""
    return [parameters(case, place < count) for place, case in enumerate(cases)]


def in_turn(rows: Iterable[Any], columns: Iterable[Any], every: int = 3) -> list[ParameterSet]:
    """Each of the one with each of the other; of the default run is one pair of `every`, which together have all of both."""
    columns = list(columns)
    return [parameters((row, column), (i + j) % every == 0) for i, row in enumerate(rows) for j, column in enumerate(columns)]
