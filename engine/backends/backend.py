"""How tokens go in and come out, on every backend: chunks of a prompt, decode steps one after the other, what is refused.

A backend says how one step is run. Each decode step leaves the inputs of the next, so that `ahead` of them can be on their way
beyond the one whose token is waited for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from engine.backends.batch_steps import BatchSteps
from engine.errors import ModelError, UsageError
from engine.graph.integers import InputValues
from engine.graph.verify import Contract
from engine.models.config import ModelConfig
from engine.sampling import SamplingParams, settings
from engine.sequence import Sequence, check_room
from tilec.artifact import Manifest
from tilec.step.graph import Op
from tilec.step.step import CHUNK_TOKENS, Head, Step


class Backend(ABC):
    """One model, loaded, with a cache of keys and values. Not for several threads at once.

    UsageError where tokens do not fit the cache or are outside the vocabulary, DeviceError where the device fails.
    """

    ahead: ClassVar[int] = 0
    """Decode steps enqueued beyond the one whose token is waited for."""

    config: ModelConfig
    step: Step
    max_seq_len: int
    """Tokens that the cache holds."""

    def __init__(self) -> None:
        self.max_seq_len = 0
        self.chunk_tokens = CHUNK_TOKENS
        self._current = Sequence()
        self._inputs_known = InputValues()

    @property
    @abstractmethod
    def kernel_seconds(self) -> float:
        """Time spent on loading kernels so far."""

    @abstractmethod
    def contract(self, op: Op) -> Contract | Manifest:
        """What the kernel of an operation says of itself."""

    def begin(self) -> Sequence:
        """A new sequence, which takes the cache from the one before: that one ends."""
        self._current.begin()
        self._current = Sequence()
        return self._current

    def prefill(self, sequence: Sequence, ids: Tokens[int], sampling: SamplingParams | None = None) -> None:
        """Take in a prompt behind what the sequence holds, and choose the token after it: the most likely one, or one drawn
        with the first random number of `sampling`'s seed."""
        self._check_open()
        check_room(sequence.length, len(ids), self.max_seq_len)
        sequence.head = "argmax" if sampling is None else "sample"
        if sampling is not None:
            self._set(settings(sampling, sequence.length + len(ids) - 1, self._slots))
        self._take_in(sequence, ids, sequence.head)

    def prompt_logits(self, sequence: Sequence, ids: Tokens[int]) -> NDArray[np.float32]:
        """Take in a prompt and give the logits of its last token, (vocab,)."""
        self._take_in(sequence, ids, "logits")
        return self._logits()

    def decode(self, sequence: Sequence, token: int) -> int:
        """Take in one token; the choice of the next."""
        return next(self.stream_tokens(sequence, token, 1))

    def decode_logits(self, sequence: Sequence, token: int) -> NDArray[np.float32]:
        """Take in one token; the logits after it, (vocab,)."""
        self._send(sequence, token)
        self._run_decode("logits", self._is_short(sequence.length))
        sequence.length += 1
        return self._logits()

    def token(self) -> int:
        """The token that the last step chose; waits for it. ModelError where its logits were not finite."""
        return self._in_vocabulary(self._chosen())

    def stream_tokens(self, sequence: Sequence, token: int, limit: int) -> Iterator[int]:
        """Take in `token` and give the choice of the next, which is taken in in turn, at most `limit` times. The choice is made
        as `prefill` was told; the n-th token after the prompt takes the n-th random number."""
        answer, head = sequence.begin(), sequence.head
        start, launched = sequence.length, 0
        waiting: deque[int] = deque()
        self._send(sequence, token)
        try:
            for given in range(limit):
                sequence.check(answer)
                while launched < min(given + 1 + self.ahead, limit) and (
                    launched <= given or start + launched < self.max_seq_len
                ):
                    if launched:
                        check_room(sequence.length, 1, self.max_seq_len)
                    self._run_decode(head, self._is_short(start + launched))
                    self._fetch(launched)
                    waiting.append(launched)
                    launched += 1
                    sequence.length = start + launched
                yield self._in_vocabulary(self._fetched(waiting.popleft()))
        finally:
            # What was enqueued ahead and not asked for is forgotten: its slots of the cache are written again.
            if sequence.is_current(answer):
                sequence.length = start + launched - len(waiting)

    @abstractmethod
    def batch_steps(self, sequences: int) -> BatchSteps:
        """Memory and steps for so many sequences at once (`engine.batch`)."""

    def close(self) -> None:
        """Give back what the model holds; idempotent."""
        self._current.begin()
        self._release()

    @property
    def _slots(self) -> int:
        """Slots of the cache."""
        return self.step.graph("decode", "sample", layers=1).buffers["uniforms"].shape[1]

    def _take_in(self, sequence: Sequence, ids: Tokens[int], head: Head) -> None:
        """All of a prompt, chunk by chunk; only the last has the head."""
        self._check_open()
        sequence.begin()
        check_room(sequence.length, len(ids), self.max_seq_len)
        self._check_vocabulary(ids)
        for begin in range(0, len(ids), self.chunk_tokens):
            chunk = list(ids[begin : begin + self.chunk_tokens])
            past, last = sequence.length, len(chunk) - 1
            places = np.arange(past, past + len(chunk), dtype=np.int32)
            given = {"ids": chunk, "positions": places, "slots": places, "lengths": past + len(chunk)}
            given |= {"last": last, "draw": past + last}
            self._run_chunk(given, len(chunk), past, head if begin + len(chunk) == len(ids) else "none")
            sequence.length += len(chunk)

    def _is_short(self, length: int) -> bool:
        """Whether a step behind so many tokens has the short form."""
        return self.step.is_short(length + 1)

    def _send(self, sequence: Sequence, token: int) -> None:
        """Set the inputs of a decode step."""
        self._check_open()
        check_room(sequence.length, 1, self.max_seq_len)
        self._check_vocabulary([token])
        self._set_decode(token, sequence.length)

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the engine is closed", fix="load the model again")

    def _check_vocabulary(self, ids: Tokens[int]) -> None:
        """UsageError for the first token outside the vocabulary."""
        outside = next((token for token in ids if not 0 <= token < self.config.vocab_size), None)
        if outside is not None:
            raise UsageError(f"token {outside} is not in the vocabulary of {self.config.vocab_size}")

    def _in_vocabulary(self, token: int) -> int:
        if not 0 <= token < self.config.vocab_size:
            raise ModelError("the logits are not finite, so no token can be chosen", fix="check the weights and their dtype")
        return token

    @property
    @abstractmethod
    def _closed(self) -> bool:
        """Whether the backend was closed."""

    @abstractmethod
    def _set(self, values: dict[str, Any]) -> None:
        """Set what is the same for all steps of an answer."""

    def _set_decode(self, token: int, place: int) -> None:
        """Set the inputs of a decode step of a token in a slot, of whatever form."""
        inputs = {"ids": token, "positions": place, "slots": place, "lengths": place + 1}
        self._inputs_known.sent(inputs)
        self._set_inputs(inputs)

    @abstractmethod
    def _set_inputs(self, inputs: dict[str, int]) -> None:
        """Set all inputs of a decode step."""

    @abstractmethod
    def _run_chunk(self, inputs: dict[str, Any], tokens: int, past: int, head: Head) -> None:
        """Run a prefill step."""

    @abstractmethod
    def _run_decode(self, head: Head, short: bool) -> None:
        """Run, or enqueue, a decode step on its inputs as they are, once `_inputs_known` lets it; `short` is the form for a
        short cache (`Step.graph`)."""

    @abstractmethod
    def _fetch(self, number: int) -> None:
        """Let the token of the last step come to the host, as the one of a number."""

    @abstractmethod
    def _fetched(self, number: int) -> int:
        """The token of a number; waits for it."""

    @abstractmethod
    def _chosen(self) -> int:
        """The token of the last step."""

    @abstractmethod
    def _logits(self) -> NDArray[np.float32]:
        """The logits of the last step, (vocab,)."""

    @abstractmethod
    def _release(self) -> None:
        """Give back what the model holds; idempotent."""
