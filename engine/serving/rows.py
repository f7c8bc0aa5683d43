"""What computes the scheduler's decisions on a backend: rows of sequences, each with pages.

`PagedBatch` (`engine.paged_batch`) has this interface: up to 256 rows, whose tokens are in any pages of a pool. Models without
a step for that have `ContiguousBatch`: up to eight rows, each with a cache of its own, so that pages mean nothing there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Tokens
from typing import Final, Protocol

from engine.backends import Backend
from engine.batch import Batch
from engine.errors import DeviceError, EngineError, UsageError
from engine.launch_limits import LaunchLimits
from engine.paged_batch import PagedBatch
from engine.paged_prompts import Piece
from engine.sampling import Logprobs
from engine.sequence import Sequence
from engine.serving.memory import ContiguousRows, Memory
from engine.serving.pool import Pool
from tilec.step.step import BATCHES

USUAL_ROWS: Final = 256
"""Rows over pages: the largest bucket of steps."""
NOT_IN_PAGES: Final = "this model's caches are not in pages"


class Rows(Protocol):
    """Sequences that decode together, one a row."""

    @property
    def limits(self) -> LaunchLimits:
        """What one call of `compute` can do in one launch."""
        ...

    def prepare(self) -> bool:
        """Make some of what requests may need ready, in less than a millisecond; False if nothing is left."""
        ...

    def compute(self, pieces: Tokens[Piece], meanwhile: Callable[[], None] | None = None) -> list[int | EngineError | None]:
        """Compute pieces of prompts; a piece with a row is the rest of its prompt, whose sequence is in that row then. Returns
        the first token of each of these, None for a piece without a row, or why it went wrong, which ends no other.
        `meanwhile` may be called once, when the pieces are enqueued and nothing waits for their tokens yet."""
        ...

    @property
    def logprobs(self) -> Mapping[int, Logprobs]:
        """Probabilities of the tokens that the last `compute` or `step` returned, by row, of those that ask for them."""
        ...

    @property
    def ahead(self) -> bool:
        """Whether steps are enqueued whose tokens were not returned."""
        ...

    def step(self, *, ahead: bool = True) -> dict[int, int]:
        """A token of each row with a sequence; a row that joined lately, or that is under a constraint, may have none yet.
        `ahead`: whether a further step may be enqueued."""
        ...

    def enqueue(self) -> bool:
        """Enqueue a step, unless one is enqueued; False if steps cannot be, and have to be waited for."""
        ...

    def enqueued(self) -> dict[int, int]:
        """`step` of the first step that is enqueued, without another one; no token of a row that was removed since."""
        ...

    def verify(self, guesses: Mapping[int, Tokens[int]], spare: Tokens[int]) -> dict[int, list[int]]:
        """The next tokens of each row: one, and one more for each of its guesses that is right; each guess takes one of the
        rows `spare`. Nothing may be enqueued."""
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
        self.limits = LaunchLimits(backend.chunk_tokens, 1, backend.max_seq_len, 1)

    def prepare(self) -> bool:
        return False

    def compute(self, pieces: Tokens[Piece], meanwhile: Callable[[], None] | None = None) -> list[int | EngineError | None]:
        found: list[int | EngineError | None] = []
        for piece in pieces:
            try:
                found.append(self._computed(piece))
            except EngineError as error:
                if isinstance(error, DeviceError) or self._backend.closed:
                    raise
                found.append(error)
        return found

    def _computed(self, piece: Piece) -> int | None:
        if piece.constraint is not None:
            raise UsageError(NOT_IN_PAGES, fix="leave out what constrains the generation")
        if piece.first == 0:
            self._sequence = self._backend.begin()
        if piece.row is not None:
            return self._batch.join(piece.row, self._sequence, piece.ids, piece.sampling)
        self._backend.extend(self._sequence, piece.ids)
        return None

    @property
    def logprobs(self) -> Mapping[int, Logprobs]:
        return self._batch.logprobs

    @property
    def ahead(self) -> bool:
        return False

    def step(self, *, ahead: bool = True) -> dict[int, int]:
        return self._batch.step()

    def enqueue(self) -> bool:
        return False

    def enqueued(self) -> dict[int, int]:
        raise UsageError("no step is enqueued")

    def verify(self, guesses: Mapping[int, Tokens[int]], spare: Tokens[int]) -> dict[int, list[int]]:
        raise UsageError(NOT_IN_PAGES, fix="leave out --speculate")

    def remove(self, row: int) -> None:
        self._batch.remove(row)

    def close(self) -> None:
        self._batch.close()


def rows_of(backend: Backend, rows: int = 0, pages: int | None = None) -> tuple[Rows, Memory]:
    """Rows of a backend, and their memory without sequences. `rows` 0: as many as are usual. `pages` of the pool; None: as many
    as fit the device. UsageError for a number that it lacks, DeviceError if they do not fit."""
    if not PagedBatch.serves(backend):
        if pages is not None:
            raise UsageError(NOT_IN_PAGES, fix="leave out --pages")
        rows = rows or BATCHES[-1]
        return ContiguousBatch(backend, rows), ContiguousRows(rows, backend.max_seq_len)
    batch = PagedBatch(backend, rows or USUAL_ROWS, pages)
    return batch, Pool.empty(
        batch.rows, batch.pages, batch.longest, parking=batch.parking, items=batch.items, page_tokens=batch.page_tokens
    )
