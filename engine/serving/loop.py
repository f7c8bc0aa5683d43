"""Does on a backend what the scheduler decides: one iteration is a launch of chunks of prompts, or a decode step of all rows.

The device has work while the host reads tokens: those of a step are read once the next step is enqueued. A step that prompts
follow is enqueued alone. Its iteration has no tokens; they are read in the next one, once the prompts' launch is enqueued.

A request that goes wrong ends alone. What makes the device unusable (DeviceError, or an error that closed the backend) is
raised, and ends everything. A request under a grammar is submitted to the scheduler once its grammar is ready; those that come
after it do not wait for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from engine.backends import Backend
from engine.errors import DeviceError, EngineError, UsageError
from engine.paged_prompts import Piece
from engine.sampling import Logprobs
from engine.serving.constraints import GrammarConstraint
from engine.serving.guesses import Text
from engine.serving.keys import page_keys
from engine.serving.memory import Memory
from engine.serving.pool import Pool
from engine.serving.protocol import Grammar, Report, Submit
from engine.serving.rows import NOT_IN_PAGES, Rows
from engine.serving.scheduler import (
    Admitted,
    Chunk,
    Decode,
    Idle,
    Policy,
    Prompts,
    Request,
    State,
    advanced,
    decoded,
    fits,
    joined,
    left,
    plan,
    submit,
    without,
)

NOT_FINITE: Final = "error: the logits are not finite, so no token can be chosen"
NO_GRAMMARS: Final = "invalid: this model's caches are not in pages, so its generations cannot be under a grammar"
READY_SECONDS: Final = 0.002
"""How long an iteration without work waits for a grammar."""


class Grammars(Protocol):
    """What makes grammars ready (`engine.serving.constraints.Constraints`)."""

    def begin(self, grammar: Grammar) -> Future[GrammarConstraint]:
        """A grammar for one generation; the future has the UsageError if it is none."""
        ...


@dataclass(slots=True)
class _Iteration:
    """What an iteration has to report."""

    tokens: dict[int, int] = field(default_factory=dict[int, int])
    ended: dict[int, str] = field(default_factory=dict[int, str])
    cached: dict[int, int] = field(default_factory=dict[int, int])
    prompt_tokens: int = 0
    logprobs: dict[int, Logprobs] = field(default_factory=dict[int, Logprobs])
    more: dict[int, list[int]] = field(default_factory=dict[int, "list[int]"])
    guessed: list[int] = field(default_factory=list[int])


@dataclass(slots=True)
class _Work:
    """A request: what was asked for, the tokens that end it, what its text must be, its tokens if next ones are guessed, and
    its row once it decodes."""

    asked: Submit
    stops: frozenset[int]
    constraint: GrammarConstraint | None = None
    text: Text | None = None
    row: int | None = None

    def ends(self, token: int) -> bool:
        """Whether a token that was just generated is the last one."""
        return token in self.stops or (self.constraint is not None and self.constraint.ended)


class EngineLoop:
    """Rows on a loaded backend, and their scheduler. The tokens of a request depend on no other request. Not thread-safe.

    `on`: the rows, and their memory without sequences (`engine.serving.rows.rows_of`), which are this loop's from now on.
    `grammars` None: requests cannot be under one. `guesses` and `prompts` as in `engine.serving.scheduler.Policy`; None: as
    many prompts as a launch of the rows takes, which is the most. `early` gets a report in the middle of an iteration: tokens
    of a step before the prompts that it computes. None: they are in the iteration's report."""

    def __init__(
        self, backend: Backend, on: tuple[Rows, Memory], chunk_tokens: int, grammars: Grammars | None = None, guesses: int = 0,
        prompts: int | None = None, early: Callable[[Report], None] | None = None,
    ) -> None:  # fmt: skip
        self._backend, self._early = backend, early
        self._rows, self.memory = on
        self._shares = isinstance(self.memory, Pool)
        if not self._shares:  # where a prompt is divided changes its bits, so this may depend on nothing else
            chunk_tokens = min(chunk_tokens, backend.chunk_tokens)
        cut = min(chunk_tokens, backend.chunk_tokens, self.memory.page_tokens) if self._shares else chunk_tokens
        if guesses and not self._shares:
            raise UsageError(NOT_IN_PAGES, fix="leave out --speculate")
        limits = self._rows.limits
        launch = replace(limits, prompts=min(prompts or limits.prompts, limits.prompts))
        self._policy = Policy(chunk_tokens, cut, guesses=guesses, launch=launch)
        self._grammars = grammars if self._shares else None
        self._preparing: dict[int, tuple[Submit, Future[GrammarConstraint]]] = {}
        self._state = State.empty(self.memory)
        self._works: dict[int, _Work] = {}
        self._refused: dict[int, str] = {}

    @property
    def idle(self) -> bool:
        """Whether no request is left."""
        return not (self._works or self._refused or self._preparing)

    @property
    def ahead(self) -> bool:
        """Whether the device has a step to compute, so that the host has time."""
        return self._rows.ahead

    @property
    def grammars(self) -> bool:
        """Whether requests can be under a grammar."""
        return self._grammars is not None

    def submit(self, asked: Submit) -> None:
        """Take a request; one that cannot be done ends in the next iteration."""
        try:
            self._backend.check_vocabulary(asked.ids)
        except EngineError as error:
            self._refused[asked.number] = f"error: {error}"
            return
        if asked.grammar is None:
            self._submit(asked, None)
        elif self._grammars is None:
            self._refused[asked.number] = NO_GRAMMARS
        else:
            self._preparing[asked.number] = asked, self._grammars.begin(asked.grammar)

    def _submit(self, asked: Submit, constraint: GrammarConstraint | None) -> None:
        """Give a request to the scheduler."""
        keys = page_keys(asked.ids, self.memory.page_tokens) if self._shares else ()
        request = Request(asked.number, len(asked.ids), asked.max_tokens, asked.priority, keys)
        if not fits(request, self.memory):
            what = f"{request.prompt} tokens and {request.max_tokens} more do not fit a context of {self.memory.longest}"
            self._refused[asked.number] = f"error: {what}"
            return
        guessed = self._policy.guesses and (asked.sampling is None or asked.sampling.may_guess)
        text = Text(asked.ids) if guessed else None
        self._works[asked.number] = _Work(asked, frozenset(asked.stop_tokens), constraint, text)
        self._state = submit(self._state, request)

    def cancel(self, number: int) -> None:
        """Forget a request, whatever it is doing."""
        self._refused.pop(number, None)
        if (preparing := self._preparing.pop(number, None)) is not None:
            preparing[1].cancel()
        self._drop(number, wrong=False)

    def iteration(self) -> Report:
        """Do what is next; a report without tokens if there is nothing. DeviceError if the device fails."""
        if self._preparing:
            self._take_prepared()
        found = _Iteration(ended=self._refused)
        self._refused = {}
        before = self._state.prompts
        self._state, iteration = plan(self._state, self._policy)
        found.cached = {one.request.number: one.cached for one in self._state.prompts[len(before) :]}
        match iteration:
            case Prompts():
                self._compute(iteration.chunks, found)
            case Decode():
                if not (iteration.followed and self._enqueue(iteration, found)):
                    self._decode(iteration, found)
            case Idle():
                pass
        return self._report(found)

    def _report(self, found: _Iteration) -> Report:
        """What was found, and what there is now."""
        state = self._state
        running = len(state.running) + len(state.prompts)
        return Report(
            found.tokens, found.ended, list(found.cached), found.prompt_tokens, running, len(state.waiting), state.memory.used,
            found.cached, found.logprobs, found.more, found.guessed,
        )  # fmt: skip

    def prepare(self) -> bool:
        """Make some of what requests may need ready, in less than a millisecond; False if nothing is left. The device should
        have work meanwhile (`ahead`), or nothing be asked."""
        try:
            return self._rows.prepare()
        except EngineError as error:  # the request that needs it will say so
            self._end_with_the_device(error)
            return True

    def close(self) -> None:
        """Free the rows; idempotent. The backend stays."""
        self._rows.close()

    def _take_prepared(self) -> None:
        """Submit requests whose grammar is ready; if there is nothing else to do, wait for one a little."""
        if not self._works:
            wait([future for _, future in self._preparing.values()], READY_SECONDS, "FIRST_COMPLETED")
        for number in [number for number, (_, future) in self._preparing.items() if future.done()]:
            asked, future = self._preparing.pop(number)
            try:
                self._submit(asked, future.result())
            except EngineError as error:
                self._refused[number] = f"invalid: {error}"

    def _compute(self, chunks: Sequence[Chunk], found: _Iteration) -> None:
        """Chunks of prompts; the last one of a prompt takes its sequence into its row."""
        try:
            tokens = self._rows.compute([self._piece(chunk) for chunk in chunks], lambda: self._meanwhile(found))
        except EngineError as error:
            self._end_with_the_device(error)
            self._fail(found, {chunk.request.request.number: f"error: {error}" for chunk in chunks})
            return
        for chunk, token in zip(chunks, tokens, strict=True):
            if isinstance(token, EngineError):
                self._fail(found, {chunk.request.request.number: f"error: {token}"})
                continue
            found.prompt_tokens += chunk.tokens
            if token is None:
                self._state = advanced(self._state, chunk)
            else:
                self._join(chunk, token, found)

    def _piece(self, chunk: Chunk) -> Piece:
        """What a chunk computes."""
        one = chunk.request
        work = self._works[one.request.number]
        ids = work.asked.ids[chunk.first : chunk.first + chunk.tokens]
        if not chunk.last:
            return Piece(one.pages, chunk.first, ids)
        return Piece(one.pages, chunk.first, ids, one.row, work.asked.sampling, work.asked.ids, work.constraint)

    def _join(self, chunk: Chunk, token: int, found: _Iteration) -> None:
        """A prompt has its first token, and a row."""
        row, number = chunk.request.row, chunk.request.request.number
        work = self._works[number]
        work.row = row
        found.tokens[number] = token
        if row in self._rows.logprobs:
            found.logprobs[number] = self._rows.logprobs[row]
        if work.text is not None:
            work.text.extend([token])
        self._state, ended = joined(self._state, chunk, stops=work.ends(token))
        self._end(found, ended)
        if ended:
            self._check_constraint(found, number, work)

    def _enqueue(self, decode: Decode, found: _Iteration) -> bool:
        """Enqueue a decode step that prompts follow; False if its tokens are to be read at once, as before guesses of the ones
        after them."""
        if decode.spare or self._rows.ahead:
            return False
        try:
            return self._rows.enqueue()
        except EngineError as error:
            self._fail_all(error, decode.rows, found)
            return True

    def _meanwhile(self, found: _Iteration) -> None:
        """What the host does while the device computes prompts."""
        self._read_enqueued(found)
        self.prepare()

    def _read_enqueued(self, found: _Iteration) -> None:
        """Read the tokens of a step that is enqueued before prompts, if there is one, and report them."""
        if not (self._rows.ahead and self._state.running):
            return
        early = found if self._early is None else _Iteration()
        self._decode(Decode(self._state.running), early, self._rows.enqueued)
        if self._early is not None:
            self._early(self._report(early))

    def _fail_all(self, error: EngineError, rows: Mapping[int, Admitted], found: _Iteration) -> None:
        """A decode step failed, and nobody knows for which row: all of its requests end."""
        self._end_with_the_device(error)
        self._fail(found, {one.request.number: f"error: {error}" for one in rows.values()})

    def _decode(self, decode: Decode, found: _Iteration, step: Callable[[], dict[int, int]] | None = None) -> None:
        """A decode step, whose tokens come from `step`; None: the next one."""
        rows, more = decode.rows, dict[int, list[int]]()
        try:
            tokens = (step or self._rows.step)() if not decode.spare else self._guessed(decode, found, more)
        except EngineError as error:
            self._fail_all(error, rows, found)
            return
        works, stopped, wrong = self._works, list[int](), list[int]()
        for row, token in tokens.items():
            number = rows[row].request.number
            if token < 0:
                wrong.append(row)
                continue
            found.tokens[number] = token
            work = works[number]
            if work.ends(token):
                stopped.append(row)
            if work.text is not None:
                work.text.extend([token, *more.get(row, ())])
        for row in more:
            if row not in stopped and row not in wrong:
                self._take_more(found, rows[row].request.number, more[row], (row, stopped, wrong))
        found.logprobs |= {rows[row].request.number: logprobs for row, logprobs in self._rows.logprobs.items()}
        missing = [row for row in rows if row not in tokens] if len(tokens) < len(rows) else []
        counts = {row: len(found.more.get(rows[row].request.number, ())) for row in more}
        self._state, ended = decoded(self._state, stopped, [*missing, *wrong], counts)
        unclear = {number: works[number] for number in ended if works[number].constraint is not None}
        self._end(found, ended)
        self._fail(found, {rows[row].request.number: NOT_FINITE for row in wrong})
        for number, work in unclear.items():
            self._check_constraint(found, number, work)

    def _end_with_the_device(self, error: EngineError) -> None:
        """Raise an error after which nothing runs on the backend any more: it is not a request's alone."""
        if isinstance(error, DeviceError) or self._backend.closed:
            raise error

    def _take_more(self, found: _Iteration, number: int, tokens: list[int], row: tuple[int, list[int], list[int]]) -> None:
        """Tokens of a request after the first of a step: up to its last one."""
        at, stopped, wrong = row
        kept = found.more[number] = list[int]()
        for token in tokens:
            if token < 0:
                wrong.append(at)
                return
            kept.append(token)
            if self._works[number].ends(token):
                stopped.append(at)
                return

    def _check_constraint(self, found: _Iteration, number: int, work: _Work) -> None:
        """Say why a request ended whose grammar could not go on."""
        if work.constraint is not None and work.constraint.error is not None:
            found.ended[number] = f"invalid: {work.constraint.error}"

    def _guessed(self, decode: Decode, found: _Iteration, more: dict[int, list[int]]) -> dict[int, int]:
        """The next token of each row; `more` gets those that follow it where guesses are right."""
        guessing = {row: text for row, one in decode.rows.items() if (text := self._works[one.request.number].text) is not None}
        if not guessing:
            return self._rows.step()
        guesses = {} if self._rows.ahead else self._guesses(decode, guessing)
        if guesses:
            verified = self._rows.verify(guesses, decode.spare)
            right = [sum(len(verified[row]) > position for row in guesses) for position in range(1, self._policy.guesses + 1)]
            found.guessed = [len(guesses), sum(map(len, guesses.values())), *right]
            more |= {row: verified[row][1:] for row in guesses}
            return {row: known[0] for row, known in verified.items()}
        return self._rows.step(ahead=False)

    def _guesses(self, decode: Decode, guessing: Mapping[int, Text]) -> dict[int, list[int]]:
        """Guesses of the next tokens by row, as many as there are rows for them, and of each request as may be right."""
        room = len(decode.spare)
        share = max(1, room // len(guessing))
        found: dict[int, list[int]] = {}
        for row, text in guessing.items():
            if guesses := text.guesses(min(self._policy.guesses, share, room, left(self._state, row) - 1)):
                found[row], room = guesses, room - len(guesses)
        return found

    def _end(self, found: _Iteration, ended: Mapping[int, str]) -> None:
        """Requests have ended, which the state knows."""
        for number, reason in ended.items():
            self._remove(self._works.pop(number))
            found.ended[number] = reason

    def _fail(self, found: _Iteration, reasons: Mapping[int, str]) -> None:
        """Requests went wrong, for these reasons."""
        for number, reason in reasons.items():
            self._drop(number, wrong=True)
            found.ended[number] = reason

    def _drop(self, number: int, *, wrong: bool) -> None:
        """Forget a request that goes on, if there is one of this number."""
        work = self._works.pop(number, None)
        if work is not None:
            self._remove(work)
            self._state = without(self._state, number, wrong=wrong)

    def _remove(self, work: _Work) -> None:
        """Free the row of a request that decoded."""
        if work.row is not None:
            self._rows.remove(work.row)
