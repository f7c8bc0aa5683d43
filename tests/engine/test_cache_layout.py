"""Where tokens are in caches: contiguous ones, and copies to a layout of pages, which backends do not know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends.interpreter import InterpreterBackend
from engine.batch import Batch
from engine.cache_layout import CacheLayout, ContiguousCache, Run, paired
from engine.checkpoint.weights import WeightPlan
from engine.errors import UsageError
from engine.tools.tiny import write_tiny_model

PAGE = 4


class Pages(CacheLayout):
    """Pages of `PAGE` slots in one pool, given out from its end."""

    def __init__(self, pages: int) -> None:
        self.unused, self.of_row = list(range(pages)), dict[int, list[int]]()

    def allocate(self, row: int, tokens: int) -> int:
        pages = self.of_row.setdefault(row, [])
        while len(pages) * PAGE < tokens and self.unused:
            pages.append(self.unused.pop())
        return len(pages) * PAGE

    def free(self, row: int) -> None:
        self.unused += self.of_row.pop(row)

    def inputs(self, rows: NDArray[np.int32], positions: NDArray[np.int32]) -> Mapping[str, NDArray[Any]]:
        return {"pages": np.array([self.of_row[int(row)] for row in rows], np.int32)}

    def runs(self, row: int, first: int, last: int) -> Iterator[Run]:
        while first < last:
            tokens = min(PAGE - first % PAGE, last - first)
            yield Run(self.of_row[row][first // PAGE] * PAGE + first % PAGE, tokens)
            first += tokens


def test_slots_of_a_contiguous_cache() -> None:
    cache = ContiguousCache(slots=128, capacity=100)
    assert cache.allocate(2, 7) == 100
    assert list(cache.runs(2, 3, 9)) == [Run(2 * 128 + 3, 6)]
    assert cache.inputs(np.array([0, 1]), np.array([5, 9]))["slots"].tolist() == [5, 9]


@pytest.mark.parametrize("tokens", [1, 4, 7, 12])
def test_copies_move_every_token_once(tokens: int) -> None:
    contiguous, pages = ContiguousCache(16, 16), Pages(5)
    pages.allocate(0, 3)
    assert pages.allocate(1, tokens) >= tokens
    source = np.arange(32)
    for taken, put in ((contiguous, pages), (pages, contiguous)):
        target = np.full(32, -1)
        for from_run, to_run in paired(taken.runs(1, 0, tokens), put.runs(1, 0, tokens)):
            target[to_run.slot : to_run.slot + to_run.tokens] = source[from_run.slot : from_run.slot + from_run.tokens]
        slots = [run.slot + number for run in put.runs(1, 0, tokens) for number in range(run.tokens)]
        values = [run.slot + number for run in taken.runs(1, 0, tokens) for number in range(run.tokens)]
        assert target[slots].tolist() == values and np.count_nonzero(target >= 0) == tokens
    with pytest.raises(ValueError, match="different numbers"):
        list(paired(contiguous.runs(0, 0, tokens + 1), pages.runs(1, 0, tokens)))


def test_a_batch_asks_the_layout_for_room_and_gives_it_back(tmp_path: Path) -> None:
    config = write_tiny_model(tmp_path / "model")
    backend = InterpreterBackend()
    backend.load(config, WeightPlan.for_model(config, tmp_path / "model", "bf16"), 40)
    with Batch(backend, 2) as batch:
        steps = batch._steps  # pyright: ignore[reportPrivateUsage]
        asked: list[tuple[int, int]] = []

        class Small(ContiguousCache):
            """Gives room for two tokens at a time, six at most."""

            def allocate(self, row: int, tokens: int) -> int:
                asked.append((row, tokens))
                return min(6, -(-tokens // 2) * 2)

            def free(self, row: int) -> None:
                asked.append((row, 0))

        steps.cache = Small(128, 40)
        row, _ = batch.add([1, 2, 3])
        for _ in range(3):
            batch.step(ahead=False)
        with pytest.raises(UsageError, match="place 0 fills"):
            batch.step()
        batch.remove(row)
    assert asked == [(0, 3), (0, 5), (0, 7), (0, 0)]
    backend.close()
