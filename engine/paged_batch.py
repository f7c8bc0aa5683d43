"""Continuous batches over a cache in pages: a step processes one token of each row that has a sequence.

    with PagedBatch(backend, 64) as batch:
        batch.extend(pages, 0, ids[:512])               a part of a prompt; chooses no token
        token = batch.join(row, pages, 512, ids[512:])  the rest; the sequence is in the row now
        tokens = batch.step()                           {row: its next token}, for every row with a sequence
        batch.remove(row)                               end a sequence; the others are unaffected

Who has which page is the caller's to decide (`engine.serving`), and `engine.graph.pages` refuses what would let two sequences
meet. A row's logits have the same bits alone and among others, in any row and bucket, however its prompt was divided into
chunks, and whether pages of its prompt were computed for it or for another prompt with the same beginning. Keys and values of
generated tokens are those of a step, not of a prompt: a prompt that has these tokens gets other bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from engine.backends.backend import Backend
from engine.backends.paged_steps import MOST_ROWS, bucket_of
from engine.errors import UsageError
from engine.graph.pages import PageTables
from engine.sampling import Logprobs, SamplingParams, logprobs_of, sample_logits, token_marks
from engine.sequence import Sequence
from tilec.step.graph import SERVE
from tilec.step.step import OutputMode

NO_TOKEN: Final = -1
"""The token of a row whose logits were not finite."""


@dataclass(slots=True, eq=False)
class _Launched:
    """An enqueued step: its number, the sequences it has a token of, by row, of how many likely tokens rows ask for
    probabilities, and the tokens and probabilities once they are on the host."""

    number: int
    members: dict[int, Sequence]
    reported: dict[int, int]
    tokens: dict[int, int] | None = None
    logprobs: dict[int, Logprobs] = field(default_factory=dict[int, Logprobs])


class PagedBatch:
    """Rows 0 to `rows` - 1 (1 to 256) on a loaded backend, and a pool of `pages` pages, of which the first `parking` are no
    sequence's; None: as many as fit. Not thread-safe.

    UsageError for wrong use: a row that is taken or free, tokens that do not fit or are not in the vocabulary. GraphError for
    pages that would let two sequences meet. DeviceError if the memory does not suffice. ModelError if the logits of a prompt
    are not finite.
    """

    def __init__(self, backend: Backend, rows: int, pages: int | None = None) -> None:
        if not 1 <= rows <= MOST_ROWS:
            raise UsageError(f"a batch has 1 to {MOST_ROWS} rows, not {rows}")
        self.rows, self.longest, self._backend = rows, backend.max_seq_len, backend
        self._steps = steps = backend.paged_steps(rows, pages)
        self.page_tokens, self.pages, self.items = steps.page_tokens, steps.pages, steps.items
        self._tables = PageTables(steps.bucket, steps.pages, steps.page_tokens, steps.table_pages)
        self.parking = self._tables.parking
        self._members: dict[int, Sequence] = {}
        self._rooms: dict[int, int] = {}
        self._in_flight: deque[_Launched] = deque()
        self._launched = 0
        self.logprobs: dict[int, Logprobs] = {}
        """Probabilities of the tokens that the last `join` or `step` returned, by row, of those that ask for them."""
        self._tables_changed = self._members_changed = True

    @staticmethod
    def serves(backend: Backend) -> bool:
        """Whether a backend's model has the step that serves: weights and a cache of 16 bits, of a family that has it."""
        return SERVE in backend.step.declaration.modes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the memory of the batch; idempotent."""
        self._steps.close()

    def extend(self, pages: Tokens[int], first: int, ids: Tokens[int]) -> None:
        """Process a chunk of a prompt at positions `first` and on, of a sequence in no row that has these pages."""
        self._prefill(pages, first, ids, "none", None)

    def join(
        self, row: int, pages: Tokens[int], first: int, ids: Tokens[int], sampling: SamplingParams | None = None, *,
        prompt: Tokens[int] | None = None,
    ) -> int:  # fmt: skip
        """Process the last chunk of a prompt, and take its sequence into a free row; returns its first generated token.
        `sampling` None is greedy; else the n-th token uses the n-th random number of its seed. `prompt` are all tokens of the
        prompt, which penalties need; `ids` if None."""
        if not 0 <= row < self.rows or row in self._members:
            raise UsageError(f"row {row} of the batch is not free")
        whole = list(ids if prompt is None else prompt)
        if sampling is not None:
            sampling.check_tokens(self._backend.config.vocab_size)
            if sampling.adjusts and len(whole) != first + len(ids):
                raise UsageError(f"the prompt has {first + len(ids)} tokens, and penalties are given {len(whole)} of them")
        token = self._first_token(row, pages, first, ids, sampling, whole)
        length = first + len(ids)
        self._steps.begin_row(row, sampling, whole, token)
        self._tables.join(row, pages, length)
        self._members[row] = Sequence(length, token=token, sampling=sampling, start=length - 1)
        self._rooms[row] = min(len(pages) * self.page_tokens, self.longest)
        self._tables_changed = self._members_changed = True
        return token

    def _first_token(
        self, row: int, pages: Tokens[int], first: int, ids: Tokens[int], sampling: SamplingParams | None, prompt: Tokens[int]
    ) -> int:  # fmt: skip
        """Process the last chunk of a prompt and choose a token: on the host if a chunk's head lacks what is asked for."""
        self.logprobs = {}
        if sampling is None or sampling.simple:
            self._prefill(pages, first, ids, "argmax" if sampling is None else "sample", sampling)
            return self._backend.in_vocabulary(self._steps.chosen())
        self._prefill(pages, first, ids, "logits", sampling)
        logits = self._steps.prompt_logits()
        token = sample_logits(logits, sampling, 0, token_marks(sampling, prompt, (), logits.size))
        if sampling.logprobs is not None:
            self.logprobs = {row: logprobs_of(logits, token, sampling.logprobs)}
        return token

    def remove(self, row: int) -> None:
        """End a sequence. Its tokens in enqueued steps are dropped."""
        self._member(row)
        self._tables.remove(row)
        del self._members[row], self._rooms[row]
        self._tables_changed = True

    def length(self, row: int) -> int:
        """Tokens of a sequence in the cache, those of enqueued steps included."""
        return self._member(row).length

    def step(self, *, ahead: bool = True) -> dict[int, int]:
        """Process the last token of every sequence; returns the next tokens by row. A sequence that joined while a step was
        enqueued may get its token only from the next call. With `ahead`, the next step is enqueued before the tokens of this
        one are on the host; a row whose pages are full has no token in that one. A row whose logits were not finite has
        NO_TOKEN, and the others their tokens."""
        if not self._members:
            raise UsageError("the batch has no sequence", fix="let one join")
        limit = self._backend.ahead if ahead else 0
        tokens_by_row: dict[int, int] = {}
        while not tokens_by_row:
            if not self._in_flight:
                self._launch(self._all_with_room())
            while len(self._in_flight) <= limit and (taking := self._with_room()):
                self._launch(taking)
            step = self._in_flight.popleft()
            tokens = self._tokens(step)
            rows = [row for row, member in step.members.items() if self._members.get(row) is member]
            tokens_by_row = {row: tokens[row] for row in rows}
            self.logprobs = {row: step.logprobs[row] for row in rows if row in step.logprobs}
        return tokens_by_row

    def step_logits(self) -> dict[int, NDArray[np.float32]]:
        """The logits, (vocab,), from which the next step chooses each row's token, by row. No token is chosen. UsageError if a
        row has penalties or bars: these count tokens of steps ahead, which are dropped."""
        if not self._members:
            raise UsageError("the batch has no sequence", fix="let one join")
        if any(member.sampling is not None and member.sampling.adjusts for member in self._members.values()):
            raise UsageError("a row has penalties or bars, which count the tokens that it drew itself")
        while self._in_flight:  # what was enqueued ahead is enqueued again
            for row, member in self._in_flight.pop().members.items():
                if self._members.get(row) is member:
                    member.length -= 1
                    self._tables.rewind(row, member.length)
        taking = self._all_with_room()
        self._members_changed = True
        self._send(taking, "logits")
        self._steps.run(self._bucket, "logits")
        for row in taking:
            self._tables.rewind(row, self._members[row].length)
        self._members_changed = True  # a step with logits does not write the inputs of the next one
        logits = self._steps.logits()
        return {row: logits[row] for row in taking}

    @property
    def _bucket(self) -> int:
        """The smallest bucket that has all rows in use."""
        return bucket_of(max(self._members) + 1, self._backend.buckets)

    def _member(self, row: int) -> Sequence:
        if row not in self._members:
            raise UsageError(f"row {row} of the batch has no sequence")
        return self._members[row]

    def _with_room(self) -> list[int]:
        return [row for row, member in self._members.items() if member.length < self._rooms[row]]

    def _all_with_room(self) -> list[int]:
        """All rows; UsageError if one has no room for another token."""
        taking = self._with_room()
        for row in self._members.keys() - set(taking):
            raise UsageError(f"the sequence in row {row} fills the {self._rooms[row]} tokens of its pages", fix="remove it")
        return taking

    def _prefill(
        self, pages: Tokens[int], first: int, ids: Tokens[int], output_mode: OutputMode, sampling: SamplingParams | None
    ) -> None:  # fmt: skip
        if not ids:
            raise UsageError("the prompt is empty", fix="give at least one token")
        if first < 0 or first + len(ids) > min(self.longest, len(pages) * self.page_tokens):
            what = f"tokens {first} to {first + len(ids) - 1} do not fit {len(pages)} pages and max-seq-len {self.longest}"
            raise UsageError(what, fix="give more pages, or raise --max-seq-len")
        self._backend.check_vocabulary(ids)
        for start in range(0, len(ids), self._backend.chunk_tokens):
            chunk = ids[start : start + self._backend.chunk_tokens]
            table, slots = self._tables.chunk(pages, first + start, len(chunk))
            last = start + len(chunk) == len(ids)
            self._steps.chunk(chunk, first + start, table, slots, output_mode if last else "none", sampling)

    def _launch(self, taking: list[int]) -> None:
        """Enqueue a step of some rows."""
        output_mode: OutputMode = "sample" if any(member.sampling for member in self._members.values()) else "argmax"
        self._send(taking, output_mode)
        self._steps.run(self._bucket, output_mode)
        self._steps.fetch(self._launched, reported=bool(self._reported(taking)))
        self._in_flight.append(_Launched(self._launched, {row: self._members[row] for row in taking}, self._reported(taking)))
        self._launched += 1
        for row in taking:
            self._members[row].length += 1

    def _reported(self, taking: list[int]) -> dict[int, int]:
        """The rows that ask for probabilities, and of how many most likely tokens."""
        params = {row: self._members[row].sampling for row in taking}
        return {row: one.logprobs for row, one in params.items() if one is not None and one.logprobs is not None}

    def _send(self, taking: list[int], output_mode: OutputMode) -> None:
        """Set the inputs of a step. The tokens of rows are on the device already, unless a sequence joined since."""
        if self._members_changed:
            for step in self._in_flight:
                self._tokens(step)
            ids = np.zeros(self._steps.bucket, np.int32)
            for row, member in self._members.items():
                ids[row] = max(0, member.token)
            self._steps.send(ids=ids)
            if output_mode == "sample":
                self._steps.set([self._members.get(row) for row in range(self.rows)])
        if self._tables_changed:
            self._steps.send(table=self._tables.table())
        self._members_changed = self._tables_changed = False
        self._steps.send(**self._tables.next_slots(taking))

    def _tokens(self, step: _Launched) -> dict[int, int]:
        """The tokens of a step by row, NO_TOKEN for one that is none; waits until they are on the host."""
        if step.tokens is None:
            fetched, step.tokens = self._steps.fetched(step.number), {}
            if step.reported:
                values, likely = self._steps.logprobs(step.number)
                step.logprobs = {row: Logprobs.of_row(values[row], likely[row], count) for row, count in step.reported.items()}
            for row, member in step.members.items():
                token = int(fetched[row])
                member.token = step.tokens[row] = token if 0 <= token < self._backend.config.vocab_size else NO_TOKEN
        return step.tokens
