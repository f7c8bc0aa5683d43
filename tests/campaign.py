"""Which cases of a campaign the default run includes, one of each kind; `pytest -m campaign`, which the gate runs too, runs the
others.

A campaign enumerates everything of some sort: every size of every kernel, every mutant, a thousand random programs. The default
run must include each kind of case, so that an error in a kind is found there first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def parameters(case: Any, here: bool) -> ParameterSet:
    """A case, a tuple of several values or one, as pytest parameters; `here`: in the default run."""
    values = tuple(case) if isinstance(case, tuple | list) else (case,)
    return pytest.param(*values, marks=() if here else pytest.mark.campaign)


def chosen(cases: Iterable[Any], here: Callable[[Any], bool]) -> list[ParameterSet]:
    """All cases, in order; `here` selects those of the default run."""
    return [parameters(case, here(case)) for case in cases]


def one_of_each(cases: Iterable[Any], *kinds: Callable[[Any], Hashable]) -> list[ParameterSet]:
    """All cases, in order; the default run includes each case that is the first with its value of one of `kinds`."""
    met: set[tuple[int, Hashable]] = set()
    found: list[ParameterSet] = []
    for case in cases:
        mine = {(number, kind(case)) for number, kind in enumerate(kinds)}
        found.append(parameters(case, not mine <= met))
        met |= mine
    return found


def first(count: int, cases: Sequence[Any]) -> list[ParameterSet]:
    """All cases, in order; the default run includes the first `count`."""
    return [parameters(case, index < count) for index, case in enumerate(cases)]


def in_turn(rows: Iterable[Any], columns: Iterable[Any], every: int = 3) -> list[ParameterSet]:
    """All pairs of a row and a column; the default run includes one pair in `every`, which together contain every row and
    column."""
    columns = list(columns)
    return [parameters((row, column), (i + j) % every == 0) for i, row in enumerate(rows) for j, column in enumerate(columns)]
