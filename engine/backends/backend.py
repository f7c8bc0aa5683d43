"""The part of generation that all backends share: chunked prefill, decode loop, checks of inputs.

A subclass says how one step runs. Each decode step writes the inputs of the next one on the device, so `ahead` further steps
can be enqueued while the host waits for a token.
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
from tilec.artifact.records import Manifest
from tilec.step.graph import Op
from tilec.step.step import CHUNK_TOKENS, OutputMode, Step


class Backend(ABC):
    """A loaded model with its KV cache. Not thread-safe.

    UsageError if tokens do not fit the cache or are outside the vocabulary, DeviceError if the device fails.
    """

    ahead: ClassVar[int] = 0
    """Decode steps enqueued beyond the one whose token is waited for."""

    config: ModelConfig
    step: Step
    max_seq_len: int
    """Capacity of the cache in tokens."""

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
        """The contract of an operation's kernel."""

    def begin(self) -> Sequence:
        """Begin a new sequence in the cache. This ends the previous one."""
        self._current.begin()
        self._current = Sequence()
        return self._current

    def prefill(self, sequence: Sequence, ids: Tokens[int], sampling: SamplingParams | None = None) -> None:
        """Prefill a prompt after the tokens that the sequence already has, and choose the next token: the most likely one, or
        with `sampling` one drawn with the seed's first random number."""
        self._check_open()
        check_room(sequence.length, len(ids), self.max_seq_len)
        sequence.output_mode = "argmax" if sampling is None else "sample"
        if sampling is not None:
            self._set(settings(sampling, sequence.length + len(ids) - 1, self._slots))
        self._prefill_chunks(sequence, ids, sequence.output_mode)

    def prompt_logits(self, sequence: Sequence, ids: Tokens[int]) -> NDArray[np.float32]:
        """Prefill a prompt and return the logits of its last token, (vocab,)."""
        self._prefill_chunks(sequence, ids, "logits")
        return self._logits()

    def decode(self, sequence: Sequence, token: int) -> int:
        """Process one token; returns the next one."""
        return next(self.stream_tokens(sequence, token, 1))

    def decode_logits(self, sequence: Sequence, token: int) -> NDArray[np.float32]:
        """Process one token; returns the logits after it, (vocab,)."""
        self._send(sequence, token)
        self._run_decode("logits", self._is_short(sequence.length))
        sequence.length += 1
        return self._logits()

    def token(self) -> int:
        """The token that the last step chose; waits for it. ModelError if its logits were not finite."""
        return self._in_vocabulary(self._last_token())

    def stream_tokens(self, sequence: Sequence, token: int, limit: int) -> Iterator[int]:
        """Process `token`, yield the next token, process that one, and so on, `limit` times at most. Tokens are chosen by the
        output mode set in `prefill`; the n-th token after the prompt uses the n-th random number."""
        generation, output_mode = sequence.begin(), sequence.output_mode
        start, launched = sequence.length, 0
        in_flight: deque[int] = deque()
        self._send(sequence, token)
        try:
            for yielded in range(limit):
                sequence.check(generation)
                while launched < min(yielded + 1 + self.ahead, limit) and (
                    launched <= yielded or start + launched < self.max_seq_len
                ):
                    if launched:
                        check_room(sequence.length, 1, self.max_seq_len)
                    self._run_decode(output_mode, self._is_short(start + launched))
                    self._fetch(launched)
                    in_flight.append(launched)
                    launched += 1
                    sequence.length = start + launched
                yield self._in_vocabulary(self._fetched(in_flight.popleft()))
        finally:
            # Steps that were enqueued ahead and not consumed are dropped: later steps write their slots of the cache again.
            if sequence.is_current(generation):
                sequence.length = start + launched - len(in_flight)

    @abstractmethod
    def batch_steps(self, sequences: int) -> BatchSteps:
        """Memory and steps for a batch of `sequences` sequences (`engine.batch`)."""

    def close(self) -> None:
        """Free the model's resources; idempotent."""
        self._current.begin()
        self._release()

    @property
    def _slots(self) -> int:
        """Number of slots of the cache."""
        return self.step.graph("decode", "sample", layers=1).buffers["uniforms"].shape[1]

    def _prefill_chunks(self, sequence: Sequence, ids: Tokens[int], output_mode: OutputMode) -> None:
        """Prefill a prompt chunk by chunk; only the last chunk has the output mode `output_mode`."""
        self._check_open()
        sequence.begin()
        check_room(sequence.length, len(ids), self.max_seq_len)
        self._check_vocabulary(ids)
        for start in range(0, len(ids), self.chunk_tokens):
            chunk = list(ids[start : start + self.chunk_tokens])
            past, last = sequence.length, len(chunk) - 1
            positions = np.arange(past, past + len(chunk), dtype=np.int32)
            inputs = {"ids": chunk, "positions": positions, "slots": positions, "lengths": past + len(chunk)}
            inputs |= {"last": last, "draw": past + last}
            self._run_chunk(inputs, len(chunk), past, output_mode if start + len(chunk) == len(ids) else "none")
            sequence.length += len(chunk)

    def _is_short(self, length: int) -> bool:
        """Whether a step after `length` tokens uses the variant for short context."""
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
        """Set the inputs that stay the same for all steps of a generation."""

    def _set_decode(self, token: int, slot: int) -> None:
        """Set the inputs of a decode step, of either variant, for `token` in slot `slot`."""
        inputs = {"ids": token, "positions": slot, "slots": slot, "lengths": slot + 1}
        self._inputs_known.sent(inputs)
        self._set_inputs(inputs)

    @abstractmethod
    def _set_inputs(self, inputs: dict[str, int]) -> None:
        """Set all inputs of a decode step."""

    @abstractmethod
    def _run_chunk(self, inputs: dict[str, Any], tokens: int, past: int, output_mode: OutputMode) -> None:
        """Run a prefill step."""

    @abstractmethod
    def _run_decode(self, output_mode: OutputMode, short: bool) -> None:
        """Run or enqueue a decode step on its current inputs, after `_inputs_known` allows it; `short` selects the variant for
        short context (`Step.graph`)."""

    @abstractmethod
    def _fetch(self, number: int) -> None:
        """Start copying the last step's token to the host, as step `number`."""

    @abstractmethod
    def _fetched(self, number: int) -> int:
        """The token of step `number`; waits for it."""

    @abstractmethod
    def _last_token(self) -> int:
        """The token of the last step."""

    @abstractmethod
    def _logits(self) -> NDArray[np.float32]:
        """The logits of the last step, (vocab,)."""

    @abstractmethod
    def _release(self) -> None:
        """Free the model's resources; idempotent."""
