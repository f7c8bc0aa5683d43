"""What computes the scheduler's decisions on a backend: rows of sequences, each with pages.

`PagedBatch` (`engine.paged_batch`) has this interface: up to 256 rows, whose tokens are in any pages of a pool. Models without
a step for that have `ContiguousBatch`: up to eight rows, each with a cache of its own, so that pages mean nothing there.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Tokens
from typing import Final, Protocol

from engine.backends import Backend
from engine.batch import Batch
from engine.errors import UsageError
from engine.paged_batch import PagedBatch
from engine.sampling import Logprobs, SamplingParams
from engine.sequence import Sequence
from engine.serving.memory import ContiguousRows, Memory
from engine.serving.pool import Pool
from tilec.step.step import BATCHES

USUAL_ROWS: Final = 256
"""Rows over pages: the largest bucket of steps."""


class Rows(Protocol):
    """Sequences that decode together, one a row. One prompt is computed at a time."""

    def extend(self, pages: Tokens[int], first: int, ids: Tokens[int]) -> None:
        """Compute a part of a prompt that is not its end: tokens from position `first` on of the sequence with these pages."""
        ...

    @property
    def logprobs(self) -> Mapping[int, Logprobs]:
        """Probabilities of the tokens that the last `join` or `step` returned, by row, of those that ask for them."""
        ...

    def join(
        self, row: int, pages: Tokens[int], first: int, ids: Tokens[int], sampling: SamplingParams | None = None, *,
        prompt: Tokens[int] | None = None,
    ) -> int:  # fmt: skip
        """Compute the rest of a prompt and take the sequence into a row that has none; returns its first token. `prompt`: all
        tokens of the prompt."""
        ...

    def step(self) -> dict[int, int]:
        """A token of each row with a sequence; a row that joined lately may have none yet."""
        ...

    def remove(self, row: int) -> None:
        """End the sequence of a row."""
        ...

    def close(self) -> None:
        """Free the memory; idempotent."""
        ...


class ContiguousBatch:
    """A `Batch` with one graph for all steps as `Rows`. UsageError for a number of rows that the backend lacks."""

    def __init__(self, backend: Backend, rows: int) -> None:
        self._backend, self._batch = backend, Batch(backend, rows, one_graph=True)
        self._sequence = Sequence()  # of the prompt that is computed

    def extend(self, pages: Tokens[int], first: int, ids: Tokens[int]) -> None:
        self._begin(first)
        self._backend.extend(self._sequence, ids)

    @property
    def logprobs(self) -> Mapping[int, Logprobs]:
        return self._batch.logprobs

    def join(
        self, row: int, pages: Tokens[int], first: int, ids: Tokens[int], sampling: SamplingParams | None = None, *,
        prompt: Tokens[int] | None = None,
    ) -> int:  # fmt: skip
        self._begin(first)
        return self._batch.join(row, self._sequence, ids, sampling)

    def step(self) -> dict[int, int]:
        return self._batch.step()

    def remove(self, row: int) -> None:
        self._batch.remove(row)

    def close(self) -> None:
        self._batch.close()

    def _begin(self, first: int) -> None:
        if first == 0:
            self._sequence = self._backend.begin()


def rows_of(backend: Backend, rows: int = 0, pages: int | None = None) -> tuple[Rows, Memory]:
    """Rows of a backend, and their memory without sequences. `rows` 0: as many as are usual. `pages` of the pool; None: as many
    as fit the device. UsageError for a number that it lacks, DeviceError if they do not fit."""
    if not PagedBatch.serves(backend):
        if pages is not None:
            raise UsageError("this model's caches are not in pages", fix="leave out --pages")
        rows = rows or BATCHES[-1]
        return ContiguousBatch(backend, rows), ContiguousRows(rows, backend.max_seq_len)
    batch = PagedBatch(backend, rows or USUAL_ROWS, pages)
    return batch, Pool.empty(
        batch.rows, batch.pages, batch.longest, parking=batch.parking, items=batch.items, page_tokens=batch.page_tokens
    )
