"""Continuous batches over a cache in pages: a step processes one token of each row that has a sequence.

    with PagedBatch(backend, 64) as batch:
        batch.extend(pages, 0, ids[:512])               a part of a prompt; chooses no token
        token = batch.join(row, pages, 512, ids[512:])  the rest; the sequence is in the row now
        tokens = batch.compute([Piece(...), Piece(...)])    either of several prompts, in one launch
        tokens = batch.step()                           {row: its next token}, for every row with a sequence
        batch.remove(row)                               end a sequence; the others are unaffected

    tokens = batch.verify({row: [5, 9]}, [spare, spare])    a step that processes guesses of a row's next tokens too

Who has which page is the caller's to decide (`engine.serving`), and `engine.graph.pages` refuses what would let two sequences
meet. A row's logits have the same bits alone and among others, in any row and bucket, whatever chunks its prompt was divided
into and shared with others, and whether its pages were computed for it or for another prompt with the same beginning. Keys and
values of generated tokens are those of a step, not of a prompt: a prompt that has these tokens gets other bits.

Guesses of a row's next tokens are processed in rows that have no sequence, with the row's pages: each layer writes the keys of
all rows before any row attends to them. So a guess's logits have the bits that they would have one step later, and the tokens
are those of single steps, whatever is guessed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from engine.backends.backend import Backend
from engine.backends.paged_steps import MOST_ROWS, bucket_of
from engine.constraint import ConstrainedMarks, Constraint
from engine.errors import DeviceError, EngineError, UsageError
from engine.graph.pages import PageTables
from engine.paged_prompts import Limits, Piece, Stretch, head_of, launches, parts_of
from engine.sampling import Logprobs, SamplingParams, logprobs_of, sample_logits, token_marks
from engine.sequence import Sequence
from tilec.step.graph import SERVE
from tilec.step.step import OutputMode

NO_TOKEN: Final = -1
"""The token of a row whose logits were not finite."""

NOTHING: Final[Mapping[int, Tokens[int]]] = {}


@dataclass(slots=True, eq=False)
class _Launched:
    """An enqueued step: its number, the sequences it has a token of, by row, of how many likely tokens rows ask for
    probabilities, and the tokens and probabilities once they are on the host; `fetched`: what all rows chose."""

    number: int
    members: dict[int, Sequence]
    reported: dict[int, int]
    tokens: dict[int, int] | None = None
    fetched: NDArray[np.int32] | None = None
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
        self.limits = Limits(backend.chunk_tokens, steps.prompts, steps.chunk_slots, steps.prompt_slots)
        self._tables = PageTables(
            steps.bucket, steps.pages, steps.page_tokens, steps.table_pages, steps.chunk_slots // steps.page_tokens,
            steps.prompt_slots // steps.page_tokens,
        )  # fmt: skip
        self.parking = self._tables.parking
        self._members: dict[int, Sequence] = {}
        self._rooms: dict[int, int] = {}
        self._marks: dict[int, ConstrainedMarks] = {}
        self._in_flight: deque[_Launched] = deque()
        self._launched = 0
        self.logprobs: dict[int, Logprobs] = {}
        """Probabilities of the tokens that the last `join`, `compute` or `step` returned, by row, where they are asked for."""
        self._tables_changed = self._members_changed = True

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
        """Make a kernel or a length of prompts ready, so that no prompt waits for it; False if all are. Otherwise each is made
        ready when it is first used."""
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

    def compute(self, pieces: Tokens[Piece]) -> list[int | EngineError | None]:
        """`extend` or `join` of several prompts, of which several are computed in one launch; those with a row also choose a
        token. Returns that token of each piece, None without a row, or why it was refused or went wrong; the others are
        unaffected, also by values that are not finite. GraphError for pages that would let two prompts meet."""
        self.logprobs = {}
        found: list[int | EngineError | None] = [self._refusal(piece, pieces[:number]) for number, piece in enumerate(pieces)]
        numbers = [number for number, refusal in enumerate(found) if refusal is None]
        taken = [pieces[number] for number in numbers]
        for launch in launches(taken, self.limits):
            tokens = self._prefill(taken, launch)
            if len(launch) > 1 and any(token is not None and not self._is_token(token) for token in tokens):
                # A prompt with infinite values: multiplied by 0 they reach rows of other prompts in its tiles.
                self._tables.drop(parts_of(taken, launch))
                tokens = [token for stretch in launch for token in self._prefill(taken, [stretch])]
            for stretch, token in zip((one for one in launch if one.last), tokens, strict=True):
                piece = taken[stretch.piece]
                try:
                    if token is not None and piece.row is not None:
                        token = self._taken(piece, piece.row, self._chosen(piece, piece.row, token))
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
        taken = piece.row in self._members or any(piece.row == other.row for other in before)
        try:
            if piece.row is not None and (taken or not 0 <= piece.row < self.rows):
                raise UsageError(f"row {piece.row} of the batch is not free")
            piece.check(self._backend, min(self.longest, len(piece.pages) * self.page_tokens))
        except UsageError as error:
            return error
        return None

    def _chosen(self, piece: Piece, row: int, token: int) -> int:
        """The first token of a prompt that ended: what the device chose, or from its logits on the host."""
        sampling = piece.sampling
        if sampling is None or not piece.on_host:
            return self._backend.in_vocabulary(token)
        logits = self._steps.prompt_logits()
        constrained = None
        if piece.constraint is not None:
            constrained = ConstrainedMarks(piece.constraint, sampling, piece.whole, logits.size)
        marks = token_marks(sampling, piece.whole, (), logits.size) if constrained is None else constrained.next()
        token = sample_logits(logits, sampling, 0, marks)
        if constrained is not None:
            constrained.accept(token)
            self._marks[row] = constrained
        if sampling.logprobs is not None:
            self.logprobs[row] = logprobs_of(logits, token, sampling.logprobs)
        return token

    def _taken(self, piece: Piece, row: int, token: int) -> int:
        """Take the sequence of a prompt that ended into its row, with its first token; returns it."""
        length = piece.first + len(piece.ids)
        self._steps.begin_row(row, piece.sampling, piece.whole, token)
        self._tables.join(row, piece.pages, length)
        self._members[row] = Sequence(length, token=token, sampling=piece.sampling, start=length - 1)
        self._rooms[row] = min(len(piece.pages) * self.page_tokens, self.longest)
        self._tables_changed = self._members_changed = True
        return token

    def remove(self, row: int) -> None:
        """End a sequence. Its tokens in enqueued steps are dropped."""
        self._member(row)
        self._tables.remove(row)
        del self._members[row], self._rooms[row]
        self._marks.pop(row, None)
        self._tables_changed = True

    def length(self, row: int) -> int:
        """Tokens of a sequence in the cache, those of enqueued steps included."""
        return self._member(row).length

    def step(self, *, ahead: bool = True) -> dict[int, int]:
        """Process the last token of every sequence; returns the next tokens by row. A sequence that joined while a step was
        enqueued may get its token only from the next call. With `ahead`, the next step is enqueued before the tokens of this
        one are on the host; a row whose pages are full, or that is under a constraint, has no token in that one. A row whose
        logits were not finite has NO_TOKEN, and the others their tokens."""
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

    @property
    def ahead(self) -> bool:
        """Whether steps are enqueued whose tokens no call has returned."""
        return bool(self._in_flight)

    def verify(self, guesses: Mapping[int, Tokens[int]], spare: Tokens[int]) -> dict[int, list[int]]:
        """`step`, which processes guesses of the tokens after a row's last one too, each in one of the rows `spare`, which have
        no sequence. Returns the next tokens by row: one, and one more for each guess that was right. They are those of single
        steps. Nothing is left of a guess that was wrong. No step may be enqueued."""
        lent = self._lent(guesses, spare)
        taking = self._all_with_room()
        for row, owner in lent:
            self._tables_changed |= self._tables.lend(row, owner)
        self._members_changed = True
        self._launch(taking, lent, guesses)
        step = self._in_flight.popleft()
        self._tokens(step)
        found: dict[int, list[int]] = {}
        for row in taking:
            member, verified = self._members[row], [self._known(step, row)]
            for guess, at in zip(guesses.get(row, ()), (one for one, owner in lent if owner == row), strict=True):
                if verified[-1] != guess:
                    break
                verified.append(self._known(step, at))
            if row in guesses:
                member.length, member.token = member.length + len(verified), verified[-1]
                self._tables.rewind(row, member.length)
            found[row] = verified
        self._members_changed = True
        self.logprobs = step.logprobs
        return found

    def _lent(self, guesses: Mapping[int, Tokens[int]], spare: Tokens[int]) -> list[tuple[int, int]]:
        """The rows that process guesses, each with the row whose they are, in the order of the guesses."""
        if self._in_flight:
            raise UsageError("steps are enqueued, so it is not known what follows", fix="take their tokens first")
        for row, tokens in guesses.items():
            member = self._member(row)
            if member.sampling is not None and (member.sampling.adjusts or member.sampling.logprobs is not None):
                raise UsageError(f"row {row} counts its tokens or reports them, so they are not guessed")
            if member.length + 1 + len(tokens) > self._rooms[row]:
                raise UsageError(f"row {row} has {self._rooms[row]} slots, and no room for {len(tokens)} guesses")
            self._backend.check_vocabulary(tokens)
        owners = [row for row, tokens in guesses.items() for _ in tokens]
        if len(owners) > len(spare):
            raise UsageError(f"there are {len(owners)} guesses, and {len(spare)} rows for them")
        return list(zip(spare, owners, strict=False))

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
        """The smallest bucket that has all rows with a sequence."""
        return bucket_of(max(self._members) + 1, self._backend.buckets)

    def _member(self, row: int) -> Sequence:
        if row not in self._members:
            raise UsageError(f"row {row} of the batch has no sequence")
        return self._members[row]

    def _with_room(self) -> list[int]:
        """The rows that a step may have now: what a constrained one may have next follows from its last token."""
        taking = [row for row, member in self._members.items() if member.length < self._rooms[row]]
        if not self._marks:
            return taking
        unknown = {row for step in self._in_flight if step.tokens is None for row in step.members}
        return [row for row in taking if row not in self._marks or not (row in unknown or self._marks[row].ended)]

    def _all_with_room(self) -> list[int]:
        """All rows; UsageError if one has no room for another token, or can have none."""
        taking = self._with_room()
        for row in self._members.keys() - set(taking):
            if row in self._marks and self._marks[row].ended:
                raise UsageError(f"no token can follow in row {row}, by its constraint", fix="remove it")
            raise UsageError(f"the sequence in row {row} fills the {self._rooms[row]} tokens of its pages", fix="remove it")
        return taking

    def _prefill(self, pieces: Tokens[Piece], launch: Tokens[Stretch]) -> list[int | None]:
        """Process some tokens of several pieces in one launch. Returns a token of each piece that they are the last ones of:
        None without a row, any if the host chooses it."""
        ids = [token for one in launch for token in pieces[one.piece].ids[one.start : one.start + one.tokens]]
        ends = np.cumsum([one.tokens for one in launch]).tolist()
        last = {end - 1: pieces[one.piece] for one, end in zip(launch, ends, strict=True) if one.last}
        ended = {row: piece for row, piece in last.items() if piece.row is not None}
        output_mode, packed = head_of(ended.values()), self._tables.chunk(parts_of(pieces, launch))
        self._steps.chunk(ids, packed, {row: piece.sampling for row, piece in ended.items()}, output_mode)
        chosen = iter(self._steps.chosen() if output_mode in ("argmax", "sample") else [NO_TOKEN] * len(ended))
        return [next(chosen) if row in ended else None for row in last]

    def _launch(
        self, taking: list[int], lent: Tokens[tuple[int, int]] = (), guesses: Mapping[int, Tokens[int]] = NOTHING
    ) -> None:
        """Enqueue a step of some rows; with guesses, also of rows that are lent to theirs."""
        output_mode: OutputMode = "sample" if any(member.sampling for member in self._members.values()) else "argmax"
        self._send(taking, output_mode, lent, guesses)
        last = max(self._members.keys() | {row for row, _ in lent})
        self._steps.run(bucket_of(last + 1, self._backend.buckets), output_mode)
        self._steps.fetch(self._launched, reported=bool(self._reported(taking)))
        self._in_flight.append(_Launched(self._launched, {row: self._members[row] for row in taking}, self._reported(taking)))
        self._launched += 1
        for row in taking:
            self._members[row].length += row not in guesses

    def _reported(self, taking: list[int]) -> dict[int, int]:
        """The rows that ask for probabilities, and of how many most likely tokens."""
        params = {row: self._members[row].sampling for row in taking}
        return {row: one.logprobs for row, one in params.items() if one is not None and one.logprobs is not None}

    def _send(
        self, taking: list[int], output_mode: OutputMode, lent: Tokens[tuple[int, int]] = (),
        guesses: Mapping[int, Tokens[int]] = NOTHING,
    ) -> None:  # fmt: skip
        """Set the inputs of a step. The tokens of rows are on the device already, unless a sequence joined since."""
        if self._members_changed:
            for step in self._in_flight:
                self._tokens(step)
            ids = np.zeros(self._steps.bucket, np.int32)
            for row, member in self._members.items():
                ids[row] = max(0, member.token)
            for (row, _), token in zip(lent, (token for tokens in guesses.values() for token in tokens), strict=True):
                ids[row] = token
            self._steps.send(ids=ids)
            if output_mode == "sample":
                drawn = self._members | {row: self._members[owner] for row, owner in lent}
                self._steps.set([drawn.get(row) for row in range(self.rows)])
        if self._tables_changed:
            self._steps.send(table=self._tables.table())
        self._members_changed = self._tables_changed = False
        self._steps.send(**self._tables.next_slots(taking, lent))
        for row in self._marks.keys() & set(taking):
            self._steps.constrain(row, self._members[row].token, self._marks[row].next())

    def _tokens(self, step: _Launched) -> dict[int, int]:
        """The tokens of a step by row, NO_TOKEN for one that is none; waits until they are on the host."""
        if step.tokens is None:
            step.fetched, step.tokens = self._steps.fetched(step.number), {}
            if step.reported:
                values, likely = self._steps.logprobs(step.number)
                step.logprobs = {row: Logprobs.of_row(values[row], likely[row], count) for row, count in step.reported.items()}
            for row, member in step.members.items():
                member.token = step.tokens[row] = token = self._known(step, row)
                if row in self._marks and self._members.get(row) is member and token != NO_TOKEN:
                    self._marks[row].accept(token)
        return step.tokens

    def _known(self, step: _Launched, row: int) -> int:
        """What a fetched step chose in a row, NO_TOKEN if that is none."""
        assert step.fetched is not None  # `_tokens` fetched it
        token = int(step.fetched[row])
        return token if self._is_token(token) else NO_TOKEN

    def _is_token(self, token: int) -> bool:
        return 0 <= token < self._backend.config.vocab_size
