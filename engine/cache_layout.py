"""Where the tokens of sequences are in the cache buffers of a step: takes rows and positions, returns slots.

Steps and backends ask a layout and compute no slot themselves. So a cache of pages is another layout: `allocate` takes pages,
`inputs` has their table, and `runs` has a run for each page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive slots that hold consecutive tokens. Slots count through a whole buffer, viewed as (slots, elements)."""

    slot: int
    tokens: int


class CacheLayout(ABC):
    """The slots of the sequences of a step. All cache buffers of a step have the same layout."""

    @abstractmethod
    def allocate(self, row: int, tokens: int) -> int:
        """Give the sequence of a row slots for its first `tokens` tokens. Returns the number of tokens that have slots now;
        fewer than `tokens` if the cache is full."""

    @abstractmethod
    def free(self, row: int) -> None:
        """Take the slots of a row's sequence back."""

    @abstractmethod
    def inputs(self, rows: NDArray[np.int32], positions: NDArray[np.int32]) -> Mapping[str, NDArray[Any]]:
        """The step's inputs, by role, from which kernels find the slots of the tokens at `positions` of `rows`, (tokens,)."""

    @abstractmethod
    def runs(self, row: int, first: int, last: int) -> Iterator[Run]:
        """The slots of the tokens [`first`, `last`) of a row's sequence, in order."""


class ContiguousCache(CacheLayout):
    """Each row has `slots` slots of its own, and the token at a position is in the slot of that number. `capacity` tokens fit:
    buffers have a whole number of tiles."""

    def __init__(self, slots: int, capacity: int) -> None:
        self._slots, self._capacity = slots, capacity

    def allocate(self, row: int, tokens: int) -> int:
        return self._capacity

    def free(self, row: int) -> None:
        """Nothing to do: a row's slots stay its own."""

    def inputs(self, rows: NDArray[np.int32], positions: NDArray[np.int32]) -> Mapping[str, NDArray[Any]]:
        return {"slots": positions}

    def runs(self, row: int, first: int, last: int) -> Iterator[Run]:
        yield Run(row * self._slots + first, last - first)


def paired(sources: Iterable[Run], targets: Iterable[Run]) -> Iterator[tuple[Run, Run]]:
    """The copies that move the tokens of one layout to another: pairs of runs of the same tokens, both in order. ValueError if
    the two have another number of tokens."""
    waiting_sources, waiting_targets = iter(sources), iter(targets)
    source, target = next(waiting_sources, None), next(waiting_targets, None)
    while source is not None and target is not None:
        tokens = min(source.tokens, target.tokens)
        yield Run(source.slot, tokens), Run(target.slot, tokens)
        source = _after(source, tokens) or next(waiting_sources, None)
        target = _after(target, tokens) or next(waiting_targets, None)
    if source is not None or target is not None:
        raise ValueError("the runs have different numbers of tokens")


def _after(run: Run, tokens: int) -> Run | None:
    """A run without its first tokens; None if nothing is left."""
    return Run(run.slot + tokens, run.tokens - tokens) if tokens < run.tokens else None
