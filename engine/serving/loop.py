"""Does on a backend what the scheduler decides: one iteration is a chunk of a prompt, or a decode step of all rows.

A request that goes wrong ends alone. What makes the device unusable (DeviceError) is raised, and ends everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from engine.backends import Backend
from engine.errors import DeviceError, EngineError
from engine.sampling import Logprobs
from engine.serving.keys import page_keys
from engine.serving.memory import Memory
from engine.serving.pool import Pool
from engine.serving.protocol import Report, Submit
from engine.serving.rows import Rows
from engine.serving.scheduler import (
    Chunk,
    Decode,
    Idle,
    Policy,
    Request,
    State,
    advanced,
    decoded,
    fits,
    joined,
    plan,
    submit,
    without,
)

NOT_FINITE: Final = "error: the logits are not finite, so no token can be chosen"


@dataclass(slots=True)
class _Iteration:
    """What an iteration has to report."""

    tokens: dict[int, int] = field(default_factory=dict[int, int])
    ended: dict[int, str] = field(default_factory=dict[int, str])
    cached: dict[int, int] = field(default_factory=dict[int, int])
    prompt_tokens: int = 0
    logprobs: dict[int, Logprobs] = field(default_factory=dict[int, Logprobs])


@dataclass(slots=True)
class _Work:
    """A request: what was asked for, the tokens that end it, and its row once it decodes."""

    asked: Submit
    stops: frozenset[int]
    row: int | None = None


class EngineLoop:
    """Rows on a loaded backend, and their scheduler. The tokens of a request depend on no other request. Not thread-safe.

    `on`: the rows, and their memory without sequences (`engine.serving.rows.rows_of`), which are this loop's from now on."""

    def __init__(self, backend: Backend, on: tuple[Rows, Memory], chunk_tokens: int) -> None:
        self._backend = backend
        self._rows, self.memory = on
        chunk_tokens = min(chunk_tokens, backend.chunk_tokens)
        self._shares = isinstance(self.memory, Pool)
        cut = min(chunk_tokens, self.memory.page_tokens) if self._shares else chunk_tokens
        self._policy = Policy(chunk_tokens, cut)
        self._state = State.empty(self.memory)
        self._works: dict[int, _Work] = {}
        self._refused: dict[int, str] = {}

    @property
    def idle(self) -> bool:
        """Whether no request is left."""
        return not self._works and not self._refused

    def submit(self, asked: Submit) -> None:
        """Take a request; one that cannot be done ends in the next iteration."""
        try:
            self._backend.check_vocabulary(asked.ids)
        except EngineError as error:
            self._refused[asked.number] = f"error: {error}"
            return
        keys = page_keys(asked.ids, self.memory.page_tokens) if self._shares else ()
        request = Request(asked.number, len(asked.ids), asked.max_tokens, asked.priority, keys)
        if not fits(request, self.memory):
            what = f"{request.prompt} tokens and {request.max_tokens} more do not fit a context of {self.memory.longest}"
            self._refused[asked.number] = f"error: {what}"
            return
        self._works[asked.number] = _Work(asked, frozenset(asked.stop_tokens))
        self._state = submit(self._state, request)

    def cancel(self, number: int) -> None:
        """Forget a request, whatever it is doing."""
        self._refused.pop(number, None)
        self._drop(number, wrong=False)

    def iteration(self) -> Report:
        """Do what is next; a report without tokens if there is nothing. DeviceError if the device fails."""
        found = _Iteration(ended=self._refused)
        self._refused = {}
        before = self._state.prompt
        self._state, iteration = plan(self._state, self._policy)
        now = self._state.prompt
        if now is not None and now is not before:
            found.cached[now.request.number] = now.cached
        match iteration:
            case Chunk():
                self._compute(iteration, found)
            case Decode():
                self._decode(iteration, found)
            case Idle():
                pass
        state = self._state
        running = len(state.running) + (state.prompt is not None)
        return Report(
            found.tokens, found.ended, list(found.cached), found.prompt_tokens, running, len(state.waiting), state.memory.used,
            found.cached, found.logprobs,
        )  # fmt: skip

    def close(self) -> None:
        """Free the rows; idempotent. The backend stays."""
        self._rows.close()

    def _compute(self, chunk: Chunk, found: _Iteration) -> None:
        """A chunk of a prompt; the last one takes its sequence into its row."""
        one = chunk.request
        number = one.request.number
        work = self._works[number]
        ids = work.asked.ids[chunk.first : chunk.first + chunk.tokens]
        try:
            if not chunk.last:
                self._rows.extend(one.pages, chunk.first, ids)
                self._state = advanced(self._state, chunk)
                found.prompt_tokens = chunk.tokens
                return
            token = self._rows.join(one.row, one.pages, chunk.first, ids, work.asked.sampling, prompt=work.asked.ids)
        except DeviceError:
            raise
        except EngineError as error:
            self._fail(found, {number: f"error: {error}"})
            return
        work.row = one.row
        found.prompt_tokens, found.tokens[number] = chunk.tokens, token
        if one.row in self._rows.logprobs:
            found.logprobs[number] = self._rows.logprobs[one.row]
        self._state, ended = joined(self._state, chunk, stops=token in work.stops)
        self._end(found, ended)

    def _decode(self, decode: Decode, found: _Iteration) -> None:
        """A decode step. If it fails, nobody knows for which row: all of its requests end."""
        rows = decode.rows
        try:
            tokens = self._rows.step()
        except DeviceError:
            raise
        except EngineError as error:
            self._fail(found, {one.request.number: f"error: {error}" for one in rows.values()})
            return
        works, stopped, wrong = self._works, list[int](), list[int]()
        for row, token in tokens.items():
            number = rows[row].request.number
            if token < 0:
                wrong.append(row)
                continue
            found.tokens[number] = token
            if token in works[number].stops:
                stopped.append(row)
        found.logprobs = {rows[row].request.number: logprobs for row, logprobs in self._rows.logprobs.items()}
        missing = [row for row in rows if row not in tokens] if len(tokens) < len(rows) else []
        self._state, ended = decoded(self._state, stopped, [*missing, *wrong])
        self._end(found, ended)
        self._fail(found, {rows[row].request.number: NOT_FINITE for row in wrong})

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
