"""Does on a backend what the scheduler decides: one iteration is a chunk of a prompt, or a decode step of all rows.

A request that goes wrong ends alone. What makes the device unusable (DeviceError) is raised, and ends everything.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.backends import Backend
from engine.batch import Batch
from engine.errors import DeviceError, EngineError
from engine.sampling import Logprobs
from engine.sequence import Sequence
from engine.serving.memory import ContiguousRows
from engine.serving.protocol import Report, Submit
from engine.serving.scheduler import (
    Chunk,
    Decode,
    Idle,
    Policy,
    Request,
    State,
    advanced,
    fits,
    generated,
    plan,
    submit,
    without,
)


@dataclass(slots=True)
class _Iteration:
    """What an iteration has to report."""

    tokens: dict[int, int] = field(default_factory=dict[int, int])
    ended: dict[int, str] = field(default_factory=dict[int, str])
    admitted: list[int] = field(default_factory=list[int])
    prompt_tokens: int = 0
    logprobs: dict[int, Logprobs] = field(default_factory=dict[int, Logprobs])


class EngineLoop:
    """A batch of `rows` rows on a loaded backend, and its scheduler. All steps take one graph (`Batch`), so that the tokens of
    a request depend on no other. Not thread-safe. UsageError for a number of rows or tokens that the backend lacks."""

    def __init__(self, backend: Backend, rows: int, chunk_tokens: int) -> None:
        self._backend, self._batch = backend, Batch(backend, rows, one_graph=True)
        self.memory = ContiguousRows(rows, backend.max_seq_len)
        self._policy = Policy(self.memory, min(chunk_tokens, backend.chunk_tokens))
        self._state = State.empty(self.memory)
        self._requests: dict[int, Submit] = {}
        self._refused: dict[int, str] = {}
        self._sequence = Sequence()  # of the prompt that is computed

    @property
    def idle(self) -> bool:
        """Whether no request is left."""
        return not self._requests and not self._refused

    def submit(self, work: Submit) -> None:
        """Take a request; one that cannot be done ends in the next iteration."""
        request = Request(work.number, len(work.ids), work.max_tokens, work.priority)
        try:
            self._backend.check_vocabulary(work.ids)
        except EngineError as error:
            self._refused[work.number] = f"error: {error}"
            return
        if not fits(request, self.memory):
            what = f"{request.prompt} tokens and {request.max_tokens} more do not fit a context of {self.memory.longest}"
            self._refused[work.number] = f"error: {what}"
            return
        self._requests[work.number] = work
        self._state = submit(self._state, request)

    def cancel(self, number: int) -> None:
        """Forget a request, whatever it is doing."""
        self._refused.pop(number, None)
        if self._requests.pop(number, None) is not None:
            self._change(without(self._state, number))

    def iteration(self) -> Report:
        """Do what is next; a report without tokens if there is nothing. DeviceError if the device fails."""
        found = _Iteration(ended=self._refused)
        self._refused = {}
        before = self._state.prompt
        self._state, iteration = plan(self._state, self._policy)
        if self._state.prompt is not None and self._state.prompt is not before:
            found.admitted.append(self._state.prompt.request.number)
        match iteration:
            case Chunk():
                self._compute(iteration, found)
            case Decode():
                self._decode(iteration, found)
            case Idle():
                pass
        state = self._state
        running = len(state.running) + (state.prompt is not None)
        used = self.memory.pages - len(state.free_pages)
        return Report(
            found.tokens, found.ended, found.admitted, found.prompt_tokens, running, len(state.waiting), used, found.logprobs
        )

    def close(self) -> None:
        """Free the batch; idempotent. The backend stays."""
        self._batch.close()

    def _compute(self, chunk: Chunk, found: _Iteration) -> None:
        """A chunk of a prompt; the last one takes its sequence into the batch."""
        work = self._requests[chunk.number]
        ids = work.ids[chunk.first : chunk.first + chunk.tokens]
        if chunk.first == 0:
            self._sequence = self._backend.begin()
        token = None
        try:
            if chunk.last:
                token = self._batch.join(chunk.row, self._sequence, ids, work.sampling)
            else:
                self._backend.extend(self._sequence, ids)
        except DeviceError:
            raise
        except EngineError as error:
            self._end(found, {chunk.number: f"error: {error}"})
            return
        found.prompt_tokens = chunk.tokens
        self._state = advanced(self._state, chunk)
        if token is not None:
            if chunk.row in self._batch.logprobs:
                found.logprobs[chunk.number] = self._batch.logprobs[chunk.row]
            self._take(found, {chunk.number: token})

    def _decode(self, decode: Decode, found: _Iteration) -> None:
        """A decode step. If it chose no token, nobody knows for which row: all of its requests end."""
        try:
            tokens = self._batch.step()
        except DeviceError:
            raise
        except EngineError as error:
            self._end(found, dict.fromkeys(decode.rows.values(), f"error: {error}"))
            return
        found.logprobs |= {decode.rows[row]: logprobs for row, logprobs in self._batch.logprobs.items()}
        self._take(found, {decode.rows[row]: token for row, token in tokens.items()})

    def _take(self, found: _Iteration, tokens: dict[int, int]) -> None:
        """New tokens of requests."""
        found.tokens |= tokens
        state, ended = generated(
            self._state, {number: token in self._requests[number].stop_tokens for number, token in tokens.items()}
        )
        self._change(state)
        self._end(found, ended)

    def _end(self, found: _Iteration, reasons: dict[int, str]) -> None:
        """Requests have ended, for these reasons."""
        for number in reasons:
            self.cancel(number)
        found.ended |= reasons

    def _change(self, state: State) -> None:
        """A later state; the rows that it frees leave the batch."""
        kept = {one.row for one in state.running}
        for one in self._state.running:
            if one.row not in kept:
                self._batch.remove(one.row)
        self._state = state
