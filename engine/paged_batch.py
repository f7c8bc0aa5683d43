"""Continuous batches over a cache in pages: a step processes one token of each row that has a sequence.

    with PagedBatch(backend, 64) as batch:
        batch.extend(pages, 0, ids[:512])               a part of a prompt; chooses no token
        token = batch.join(row, pages, 512, ids[512:])  the rest; the sequence is in the row now
        tokens = batch.compute([Piece(...), Piece(...)])    either of several prompts, in one launch
        tokens = batch.step()                           {row: its next token}, for every row with a sequence
        batch.remove(row)                               end a sequence; the others are unaffected

    batch.enqueue()                                 a step, whose tokens the next call returns
    tokens = batch.enqueued()

    tokens = batch.verify({row: [5, 9]}, [spare, spare])    a step that processes guesses of a row's next tokens too

Who has which page is the caller's to decide (`engine.serving`), and `engine.graph.pages` refuses what would let two sequences
meet. A row's logits have the same bits alone and among others, in any row and bucket, whatever chunks its prompt was divided
into and shared with others, and whether its pages were computed for it or for another prompt with the same beginning. Keys and
values of generated tokens are those of a step, not of a prompt: a prompt that has these tokens gets other bits.

Guesses of a row's next tokens are processed in rows that have no sequence, with the row's pages: each layer writes the keys of
all rows before any row attends to them. So a guess's logits have the bits that they would have one step later, and the tokens
are those of single steps, whatever is guessed.

A sequence whose numbers are not finite ends alone, and nothing of it is left in pages that others have (`engine.graph.doubts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Tokens
from typing import Self

import numpy as np
from numpy.typing import NDArray

from engine.backends.backend import Backend
from engine.backends.paged_steps import MOST_ROWS
from engine.constraint import ConstrainedMarks, Constraint
from engine.errors import DeviceError, EngineError, UsageError
from engine.graph.doubts import Doubts
from engine.graph.pages import PageTables
from engine.launch_limits import LaunchLimits
from engine.paged_decode import DecodingRows
from engine.paged_prompts import Piece, Stretch, head_of, launches, parts_of
from engine.sampling import Logprobs, SamplingParams, logprobs_of, sample_logits, token_marks
from engine.sequence import NO_TOKEN, Sequence
from tilec.step.graph import SERVE


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
        self.limits = LaunchLimits(backend.chunk_tokens, steps.prompts, steps.chunk_slots, steps.prompt_slots)
        self._tables = PageTables(
            steps.bucket, steps.pages, steps.page_tokens, steps.table_pages, steps.chunk_slots // steps.page_tokens,
            steps.prompt_slots // steps.page_tokens,
        )  # fmt: skip
        self.parking = self._tables.parking
        self._doubts = Doubts(steps.pages, steps.page_tokens)
        self._decoding = DecodingRows(backend, steps, self._tables, self._doubts, rows)
        self.logprobs: dict[int, Logprobs] = {}
        """Probabilities of the tokens that the last `join`, `compute` or `step` returned, by row, where they are asked for."""

    @staticmethod
    def serves(backend: Backend) -> bool:
        """Whether a backend's model has the step that serves."""
        return SERVE in backend.step.declaration.modes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the memory of the batch; idempotent."""
        self._steps.close()

    def prepare(self) -> bool:
        """Make some of what prompts may need ready, kernels and lengths, in less than a millisecond; False if nothing is left.
        The rest is made ready when it is first used."""
        return self._steps.device.prepare_chunk()

    def extend(self, pages: Tokens[int], first: int, ids: Tokens[int]) -> None:
        """Process a chunk of a prompt at positions `first` and on, of a sequence in no row that has these pages."""
        self._only(Piece(pages, first, ids))

    def join(
        self, row: int, pages: Tokens[int], first: int, ids: Tokens[int], sampling: SamplingParams | None = None, *,
        prompt: Tokens[int] | None = None, constraint: Constraint | None = None,
    ) -> int:  # fmt: skip
        """Process the last chunk of a prompt, and take its sequence into a free row; returns its first generated token.
        `sampling` None is greedy; else the n-th token uses the n-th random number of its seed. `prompt` are all tokens of the
        prompt, which penalties need; `ids` if None. `constraint` says which tokens `masked` sampling may draw; once it has
        ended, the row must be removed."""
        return self._only(Piece(pages, first, ids, row, sampling, prompt, constraint))

    def compute(self, pieces: Tokens[Piece], meanwhile: Callable[[], None] | None = None) -> list[int | EngineError | None]:
        """`extend` or `join` of several prompts, of which several are computed in one launch; those with a row also choose a
        token. Returns that token of each piece, None without a row, or why it was refused or went wrong; the others are
        unaffected, also by values that are not finite. `meanwhile` is called once if a piece is computed, when its launch is
        enqueued and its token not waited for yet: tokens of steps before it are there then. It may call `enqueued` and
        `remove`. GraphError for pages that would let two prompts meet."""
        self.logprobs = {}
        found: list[int | EngineError | None] = [self._refusal(piece, pieces[:number]) for number, piece in enumerate(pieces)]
        numbers = [number for number, refusal in enumerate(found) if refusal is None]
        taken = [pieces[number] for number in numbers]
        for launch in launches(taken, self.limits):
            tokens, meanwhile = self._prefill(taken, launch, meanwhile), None
            if len(launch) > 1 and any(token is not None and not self._backend.is_token(token) for token in tokens):
                # A prompt with infinite values: multiplied by 0 they reach rows of other prompts in its tiles.
                self._tables.drop(parts_of(taken, launch))
                tokens = [token for stretch in launch for token in self._prefill(taken, [stretch])]
            for stretch, token in zip((one for one in launch if one.last), tokens, strict=True):
                piece = taken[stretch.piece]
                try:
                    if token is not None and piece.row is not None:
                        token = self._taken(piece, piece.row, *self._chosen(piece, piece.row, token))
                    found[numbers[stretch.piece]] = token
                except EngineError as error:
                    if isinstance(error, DeviceError) or self._backend.closed:
                        raise
                    found[numbers[stretch.piece]] = error
        return found

    def _only(self, piece: Piece) -> int:
        """The token of one piece, NO_TOKEN without a row; raises the error with which it ends."""
        (token,) = self.compute([piece])
        if isinstance(token, EngineError):
            raise token
        return NO_TOKEN if token is None else token

    def _refusal(self, piece: Piece, before: Tokens[Piece]) -> UsageError | None:
        """What is wrong with a piece, which comes after others."""
        taken = piece.row in self._decoding.members or any(piece.row == other.row for other in before)
        try:
            if piece.row is not None and (taken or not 0 <= piece.row < self.rows):
                raise UsageError(f"row {piece.row} of the batch is not free")
            piece.check(self._backend, min(self.longest, len(piece.pages) * self.page_tokens))
        except UsageError as error:
            return error
        return None

    def _chosen(self, piece: Piece, row: int, token: int) -> tuple[int, ConstrainedMarks | None]:
        """The first token of a prompt that ended: what the device chose, or from its logits on the host. Second: the marks for
        those after it, if it is under a constraint."""
        sampling = piece.sampling
        if sampling is None or not piece.on_host:
            return self._backend.in_vocabulary(token), None
        logits = self._steps.prompt_logits()
        constrained = None
        if piece.constraint is not None:
            constrained = ConstrainedMarks(piece.constraint, sampling, piece.whole, logits.size)
        marks = token_marks(sampling, piece.whole, (), logits.size) if constrained is None else constrained.next()
        token = sample_logits(logits, sampling, 0, marks)
        if constrained is not None:
            constrained.accept(token)
        if sampling.logprobs is not None:
            self.logprobs[row] = logprobs_of(logits, token, sampling.logprobs)
        return token, constrained

    def _taken(self, piece: Piece, row: int, token: int, marks: ConstrainedMarks | None) -> int:
        """Take the sequence of a prompt that ended into its row, with its first token; returns it."""
        length = piece.first + len(piece.ids)
        self._steps.begin_row(row, piece.sampling, piece.whole, token)
        room = min(len(piece.pages) * self.page_tokens, self.longest)
        member = Sequence(length, token=token, sampling=piece.sampling, start=length - 1)
        self._decoding.take(row, member, piece.pages, room, marks)
        return token

    def _prefill(
        self, pieces: Tokens[Piece], launch: Tokens[Stretch], meanwhile: Callable[[], None] | None = None
    ) -> list[int | None]:  # fmt: skip
        """Process some tokens of several pieces in one launch. Returns a token of each piece that they are the last ones of:
        None without a row, any if the host chooses it."""
        ids = [token for one in launch for token in pieces[one.piece].ids[one.start : one.start + one.tokens]]
        ends = np.cumsum([one.tokens for one in launch]).tolist()
        last = {end - 1: pieces[one.piece] for one, end in zip(launch, ends, strict=True) if one.last}
        ended = {row: piece for row, piece in last.items() if piece.row is not None}
        parts = parts_of(pieces, launch)
        output_mode, packed = head_of(ended.values()), self._tables.chunk(parts)
        self._steps.clear(self._doubts.chunk(parts))
        self._steps.chunk(ids, packed, {row: piece.sampling for row, piece in ended.items()}, output_mode)
        if meanwhile is not None:
            meanwhile()
            self.logprobs = {}
        chosen = iter(self._steps.chosen() if output_mode in ("argmax", "sample") else [NO_TOKEN] * len(ended))
        return [next(chosen) if row in ended else None for row in last]

    def remove(self, row: int) -> None:
        """End a sequence. Its tokens in enqueued steps are dropped."""
        self._decoding.remove(row)

    def length(self, row: int) -> int:
        """Tokens of a sequence in the cache, those of enqueued steps included."""
        return self._decoding.member(row).length

    def step(self, *, ahead: bool = True) -> dict[int, int]:
        """Process the last token of every sequence; returns the next tokens by row. A sequence that joined while a step was
        enqueued may get its token only from the next call. With `ahead`, the next step is enqueued before the tokens of this
        one are on the host; a row whose pages are full, or that is under a constraint, has no token in that one. A row whose
        logits were not finite has NO_TOKEN, and the others their tokens."""
        tokens, self.logprobs = self._decoding.step(self._backend.ahead if ahead else 0)
        return tokens

    def enqueue(self) -> bool:
        """Enqueue a step of every sequence, as `step` does, unless one is enqueued; returns True. UsageError if one has no room
        for another token."""
        self._decoding.enqueue()
        return True

    def enqueued(self) -> dict[int, int]:
        """The tokens by row of the step that was enqueued first, as `step` returns them, without enqueueing another one: none
        of a sequence that joined or was removed since. UsageError if none is enqueued."""
        tokens, self.logprobs = self._decoding.enqueued()
        return tokens

    @property
    def ahead(self) -> bool:
        """Whether steps are enqueued whose tokens no call has returned."""
        return self._decoding.ahead

    def verify(self, guesses: Mapping[int, Tokens[int]], spare: Tokens[int]) -> dict[int, list[int]]:
        """`step`, which processes guesses of the tokens after a row's last one too, each in one of the rows `spare`, which have
        no sequence. Returns the next tokens by row: one, and one more for each guess that was right. They are those of single
        steps. Nothing is left of a guess that was wrong. No step may be enqueued."""
        tokens, self.logprobs = self._decoding.verify(guesses, spare)
        return tokens

    def step_logits(self) -> dict[int, NDArray[np.float32]]:
        """The logits, (vocab,), from which the next step chooses each row's token, by row. No token is chosen. UsageError if a
        row has penalties or bars: these count tokens of steps ahead, which are dropped."""
        return self._decoding.logits()
