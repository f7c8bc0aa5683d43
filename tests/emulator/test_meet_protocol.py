"""The counts of `meet`, explored exhaustively: in no order of the steps of several ranks, over several launches that follow
each other with no work by the host, does a rank read what belongs to another launch, or wait for ever.

The model has one block of each rank. A rank writes its tensor, stores its count into the signals of each rank, waits until its
own signals have reached the count, reads the tensor of each rank, and goes on to the next launch. As `engine.ranks.lifetimes`
demands, tensors alternate: one that others read is not written again before the rank has left the next meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

WRITE, SIGNAL, WAIT, READ = range(4)
LAUNCHES: Final = 4
Rank = tuple[int, int, int]
"""The launch, what the rank does next, and which other rank that concerns."""
State = tuple[tuple[Rank, ...], tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]
"""Ranks; the signals of each, by who stores them; the launch whose content each of a rank's tensors has."""


def changed(row: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*row[:index], value, *row[index + 1 :])


def following(state: State, rank: int, *, waits: bool, distance: int) -> Iterator[State]:
    """The states that one step of a rank leads to. `distance`: by how much a count may be too small to be waited for."""
    ranks, signals, tensors = state
    launch, doing, other = ranks[rank]
    last = other + 1 == len(ranks)
    if launch > LAUNCHES:
        return
    step: Rank = (launch, doing, other + 1)
    if doing == WRITE:
        step = (launch, SIGNAL, 0)
        own = changed(tensors[rank], launch % len(tensors[rank]), launch)
        tensors = (*tensors[:rank], own, *tensors[rank + 1 :])
    elif doing == SIGNAL:
        step = (launch, WAIT, 0) if last else step
        signals = (*signals[:other], changed(signals[other], rank, launch), *signals[other + 1 :])
    elif doing == WAIT:
        if waits and signals[rank][other] < launch - distance:
            return
        step = (launch, READ, 0) if last else step
    else:
        step = (launch + 1, WRITE, 0) if last else step
    yield (*ranks[:rank], step, *ranks[rank + 1 :]), signals, tensors


def explored(count: int, *, alternating: int = 2, waits: bool = True, distance: int = 0) -> set[str]:
    """What goes wrong in some order of steps of `count` ranks."""
    start: State = (((1, WRITE, 0),) * count, ((0,) * count,) * count, ((0,) * alternating,) * count)
    seen, pending, wrong = {start}, [start], set[str]()
    while pending:
        state = pending.pop()
        ranks, _, tensors = state
        for launch, doing, other in ranks:
            if doing == READ and launch <= LAUNCHES and tensors[other][launch % alternating] != launch:
                wrong.add("reads what belongs to another launch")
        found = [one for rank in range(count) for one in following(state, rank, waits=waits, distance=distance)]
        if not found and any(launch <= LAUNCHES for launch, _, _ in ranks):
            wrong.add("waits for ever")
        pending += [one for one in found if one not in seen]
        seen.update(found)
    return wrong


@pytest.mark.parametrize("count", [2, 3])
def test_no_order_of_steps_goes_wrong(count: int) -> None:
    assert explored(count) == set()


def test_the_model_shows_what_the_rules_are_for() -> None:
    stale = {"reads what belongs to another launch"}
    assert explored(2, waits=False) == stale
    assert explored(2, distance=1) == stale  # the count of the launch before is taken for this one's
    assert explored(2, alternating=1) == stale  # a tensor is written again before others have left the next meet
