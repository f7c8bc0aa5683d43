"""Batched generation: a step processes one token of each sequence and reads the weights once for all of them.

    with Batch(backend, 8) as batch:
        row, token = batch.add(prompt)            prefill a new sequence and choose its first token
        tokens = batch.step()                     {row: its next token}, for every sequence
        batch.remove(row)                         end a sequence; the others are unaffected

Sequences are added and removed between steps; a scheduler decides when (`engine.serving`). A `row` of the batch is the row of a
sequence in every input and output, and its part of the caches. A row without a sequence is computed in every step as well, and
writes nothing but slot 0 of its own cache. A row's cache is zeroed before it has another sequence, unless a token shows that
all numbers are finite which the last one wrote (`engine.graph.doubts`): attention multiplies slots past the end of a sequence
by 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from engine.backends.backend import Backend
from engine.errors import UsageError
from engine.sampling import Logprobs, SamplingParams, logprobs_of, sample_logits, token_marks
from engine.sequence import NO_TOKEN, Sequence, check_room
from tilec.step.step import BATCHES, OutputMode, Variants


def _listed(numbers: Tokens[int]) -> str:
    *rest, last = map(str, numbers)
    return f"{', '.join(rest)} or {last}"


@dataclass(slots=True, eq=False)
class _Launched:
    """An enqueued step: its number, its sequences by row, and their tokens once they are on the host, with the probabilities
    of rows that ask for them. `left`: rows whose sequence was removed since, of which it is the last step."""

    number: int
    members: tuple[Sequence | None, ...]
    tokens: NDArray[np.int32] | None = None
    logprobs: dict[int, Logprobs] = field(default_factory=dict[int, Logprobs])
    left: list[int] = field(default_factory=list[int])


@dataclass(slots=True, eq=False)
class _State:
    """`doubtful`: rows whose caches may hold numbers that are not finite."""

    members: list[Sequence | None]
    doubtful: set[int] = field(default_factory=set[int])
    changed: bool = True
    launched: int = 0
    in_flight: deque[_Launched] = field(default_factory=deque[_Launched])


class Batch:
    """A batch with rows for `sequences` sequences on a loaded backend, each with a cache of `max_seq_len` tokens. Not
    thread-safe. Prefill uses the backend's own cache, so `add` ends the backend's own generation.

    By default a step takes the fastest graph for its sequences: that of short contexts if all are short, that which finds the
    most likely token if all are greedy. With `one_graph` every step takes the same one, of long contexts with sampling, so that
    no token depends on the other sequences.

    UsageError if a prompt does not fit, if no row is free, or if there is no sequence. ModelError if the logits of a prompt are
    not finite.
    """

    def __init__(self, backend: Backend, sequences: int, *, one_graph: bool = False) -> None:
        if sequences not in BATCHES:
            raise UsageError(f"a batch has {_listed(BATCHES)} sequences, not {sequences}", fix="places may stay free")
        self._backend, self.sequences, self._one_graph = backend, sequences, one_graph
        self._steps = backend.decode_steps(sequences)
        self._state = _State([None] * sequences)
        self.logprobs: dict[int, Logprobs] = {}
        """Probabilities of the tokens that the last `add`, `join` or `step` returned, by row, of those that ask for them."""
        if one_graph:
            self._steps.prepared(self._output_mode(), self._variants())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the memory of the batch; idempotent."""
        self._steps.close()

    @property
    def free(self) -> int:
        """Number of rows without a sequence."""
        return self._state.members.count(None)

    def length(self, row: int) -> int:
        """Tokens of a sequence in the cache, those of enqueued steps included."""
        return self._member(row).length

    def add(self, ids: Tokens[int], sampling: SamplingParams | None = None) -> tuple[int, int]:
        """Prefill a prompt; returns the row of the new sequence and its first generated token. `sampling` None is greedy; else
        the n-th token uses the n-th random number of its seed."""
        members = self._state.members
        if None not in members:
            raise UsageError(f"all {self.sequences} places of the batch are taken", fix="remove a sequence that has ended")
        row = members.index(None)
        return row, self.join(row, self._backend.begin(), ids, sampling)

    def join(self, row: int, sequence: Sequence, ids: Tokens[int], sampling: SamplingParams | None = None) -> int:
        """Prefill the rest of a prompt, of which the backend's own sequence has the tokens before (`Backend.extend`), and take
        that sequence into a free row; returns its first generated token."""
        if not 0 <= row < self.sequences or self._state.members[row] is not None:
            raise UsageError(f"place {row} of the batch is not free")
        self.logprobs = {}
        if sampling is None or sampling.simple:
            self._backend.prefill(sequence, ids, sampling)
            sequence.token = self._backend.token()
        else:
            sequence.token = self._first_token(row, sequence, ids, sampling)
        self._clear(row)
        sequence.room = self._steps.cache.allocate(row, sequence.length)
        self._steps.adopt(row, self._backend.own, 0, sequence.length)
        self._steps.begin_row(row, sampling, sequence.prompt, [sequence.token])
        self._state.members[row] = sequence
        self._state.changed = True
        return sequence.token

    def _first_token(self, row: int, sequence: Sequence, ids: Tokens[int], sampling: SamplingParams) -> int:
        """Prefill the rest of a prompt and draw the first token on the host, in a way that a step of one sequence lacks."""
        vocabulary = self._backend.config.vocab_size
        sampling.check_tokens(vocabulary)
        check_room(sequence.length, len(ids), self._backend.max_seq_len)
        sequence.sampling, sequence.start = sampling, sequence.length + len(ids) - 1
        logits = self._backend.prompt_logits(sequence, ids)
        token = sample_logits(logits, sampling, 0, token_marks(sampling, sequence.prompt, (), vocabulary))
        self._backend.finite()
        if sampling.logprobs is not None:
            self.logprobs = {row: logprobs_of(logits, token, sampling.logprobs)}
        return token

    def remove(self, row: int) -> None:
        """End a sequence. Its tokens in enqueued steps are dropped."""
        member, state = self._member(row), self._state
        unknown = [step for step in state.in_flight if step.tokens is None and step.members[row] is member]
        if unknown:
            unknown[-1].left.append(row)
        if unknown or member.token == NO_TOKEN:
            state.doubtful.add(row)
        self._steps.cache.free(row)
        state.members[row] = None
        state.changed = True

    def _clear(self, row: int) -> None:
        """Zero the cache of a row without a sequence if it is in doubt. All enqueued steps are done: a prompt came after
        them."""
        for step in self._state.in_flight:
            self._tokens(step)
        if row in self._state.doubtful:
            self._state.doubtful.remove(row)
            self._steps.clear(row)

    def step(self, *, ahead: bool = True) -> dict[int, int]:
        """Process the last token of every sequence; returns the next tokens by row. A sequence added while a step was enqueued
        may get its token only from the next call. With `ahead`, the next step is enqueued before the tokens of this one are on
        the host; callers that need no further step pass False. A row whose logits were not finite has NO_TOKEN, and the others
        their tokens."""
        state = self._state
        if not any(state.members):
            raise UsageError("the batch has no sequence", fix="add one")
        tokens_by_row: dict[int, int] = {}
        self.logprobs = {}
        while not tokens_by_row:
            limit = self._backend.ahead if ahead else 0
            while not state.in_flight or (len(state.in_flight) <= limit and self._full_row() is None):
                self._launch()
            step = state.in_flight.popleft()
            tokens = self._tokens(step)
            for row, member in enumerate(step.members):
                if member is not None and member is state.members[row]:
                    tokens_by_row[row] = int(tokens[row])
                    if row in step.logprobs:
                        self.logprobs[row] = step.logprobs[row]
        return tokens_by_row

    def logits(self, tokens: Mapping[int, int]) -> dict[int, NDArray[np.float32]]:
        """Process a given token of every sequence; returns the logits after it, (vocab,), by row. UsageError unless `tokens`
        has exactly one token for each sequence."""
        state = self._state
        members = {row: member for row, member in enumerate(state.members) if member is not None}
        if tokens.keys() != members.keys() or not members:
            raise UsageError(f"tokens are for places {sorted(tokens)}, and sequences have {sorted(members)}")
        for row, member in members.items():
            if member.sampling is not None and member.sampling.adjusts:
                what = f"the sequence at place {row} has penalties or bars, which count the tokens that it drew itself"
                raise UsageError(what, fix="ask for logits of sequences without them")
            self._backend.check_vocabulary([tokens[row]])
            if not self._has_room(row, member):
                raise self._refuse_full(row)
        for step in state.in_flight:
            self._undo(step)
        state.in_flight.clear()
        for row, member in members.items():
            member.token = tokens[row]
        state.doubtful.update(members)
        self._send()
        self._steps.run("logits", self._variants())
        for member in members.values():
            member.length += 1
        state.changed = True  # a step with logits does not write the inputs of the next one
        all_logits = self._steps.logits()
        return {row: all_logits[row] for row in members}

    def _member(self, row: int) -> Sequence:
        member = self._state.members[row] if 0 <= row < self.sequences else None
        if member is None:
            raise UsageError(f"place {row} of the batch has no sequence")
        return member

    def _full_row(self) -> int | None:
        """A row whose sequence fills its cache, or None."""
        for row, member in enumerate(self._state.members):
            if member is not None and member.length >= member.room and not self._has_room(row, member):
                return row
        return None

    def _has_room(self, row: int, member: Sequence) -> bool:
        """Whether the cache has a slot for one more token of a sequence."""
        member.room = self._steps.cache.allocate(row, member.length + 1)
        return member.length < member.room

    def _refuse_full(self, row: int) -> UsageError:
        what = f"the sequence at place {row} fills the {self._backend.max_seq_len} tokens of its cache"
        return UsageError(what, fix="remove it, or raise --max-seq-len")

    def _launch(self) -> None:
        """Enqueue a step; UsageError if a sequence fills its cache."""
        state, full = self._state, self._full_row()
        if full is not None:
            raise self._refuse_full(full)
        if state.changed:
            for step in state.in_flight:
                self._tokens(step)
            self._send()
        self._steps.run(self._output_mode(), self._variants())
        self._steps.buffers.fetch(state.launched, self._steps.reports if self._reported(state.members) else ())
        state.in_flight.append(_Launched(state.launched, tuple(state.members)))
        state.launched += 1
        for member in state.members:
            if member is not None:
                member.length += 1

    def _tokens(self, step: _Launched) -> NDArray[np.int32]:
        """The tokens of a step, NO_TOKEN for one that is none; waits until they are on the host."""
        if step.tokens is None:
            fetched = self._steps.buffers.fetched(step.number)
            chosen = [token if self._backend.is_token(token) else NO_TOKEN for token in fetched.tolist()]
            step.tokens = np.array(chosen, np.int32)
            self._state.doubtful.difference_update(row for row in step.left if step.tokens[row] != NO_TOKEN)
            if reported := self._reported(step.members):
                logprobs, tokens = self._steps.logprobs(step.number)
                step.logprobs = {row: Logprobs.of_row(logprobs[row], tokens[row], count) for row, count in reported.items()}
            for member, token in zip(step.members, step.tokens, strict=True):
                if member is not None:
                    member.token = int(token)
        return step.tokens

    @staticmethod
    def _reported(members: Tokens[Sequence | None]) -> dict[int, int]:
        """The rows that ask for probabilities, and of how many most likely tokens."""
        sampled = ((row, member.sampling) for row, member in enumerate(members) if member is not None)
        return {row: params.logprobs for row, params in sampled if params is not None and params.logprobs is not None}

    def _undo(self, step: _Launched) -> None:
        """Undo the lengths of an enqueued step: later steps write the same slots of the cache again."""
        for member in step.members:
            if member is not None:
                member.length -= 1

    def _variants(self) -> Variants:
        """The variants that the next step uses."""
        if self._one_graph:
            return self._backend.step.decode_variants(self._backend.max_seq_len)
        return self._backend.step.decode_variants(
            1 + max(member.length for member in self._state.members if member is not None)
        )

    def _output_mode(self) -> OutputMode:
        sampled = any(member is not None and member.sampling is not None for member in self._state.members)
        return "sample" if sampled or self._one_graph else "argmax"

    def _send(self) -> None:
        """Set the next step's inputs, and how tokens are sampled."""
        members = self._state.members
        self._steps.send(members)
        if self._output_mode() == "sample":
            self._steps.set(members)
        self._state.changed = False
