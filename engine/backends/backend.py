"""The part of generation that all backends share: chunked prefill, the decode loop of one sequence, checks of inputs.

A subclass says how a step runs, of one sequence or several. Each decode step writes the inputs of the next one on the device,
so `ahead` further steps can be enqueued while the host waits for a token.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from contextlib import ExitStack
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from engine.backends.decode_steps import DecodeGraphs, DecodeSteps, StepRunner, graphs_of
from engine.backends.paged_steps import PagedDevice, PagedSteps, bucket_of, require_pages
from engine.errors import ModelError, UsageError
from engine.graph.contract import Contract
from engine.models.config import ModelConfig
from engine.sampling import TOP_K_LIMIT, SamplingParams
from engine.sequence import Sequence, check_room
from tilec.artifact.records import Manifest
from tilec.step.graph import Op
from tilec.step.step import BUCKETS, CHUNK_TOKENS, OutputMode, Step


class Backend(StepRunner):
    """A loaded model on a device. It runs steps of one sequence or several (`decode_steps`); `own` are those of its own
    sequence, whose cache a prefill writes. Not thread-safe.

    UsageError if tokens do not fit the cache or are outside the vocabulary, DeviceError if the device fails.
    """

    ahead: ClassVar[int] = 0
    """Decode steps enqueued beyond the one whose token is waited for."""

    buckets: ClassVar[tuple[int, ...]] = BUCKETS
    """Numbers of rows for which steps that serve are prepared."""

    config: ModelConfig

    def __init__(self) -> None:
        self.max_seq_len = 0
        self.chunk_tokens = CHUNK_TOKENS
        self._current = Sequence()
        self._steps: list[DecodeSteps | PagedSteps] = []
        self._own: DecodeSteps | None = None
        self._doubtful = False  # whether the cache of its own sequence may hold numbers that are not finite
        self._unread = tuple[int, ...]()  # steps of its own sequence whose tokens nobody took

    @property
    def own(self) -> DecodeSteps:
        """The steps of the backend's own sequence."""
        if self._own is None:
            self._load_own()
        assert self._own is not None  # `load` or `_load_own` set it
        return self._own

    @own.setter
    def own(self, steps: DecodeSteps) -> None:
        self._own = steps

    def _load_own(self) -> None:
        """Make the steps of the backend's own sequence, if `load` has left them out."""

    def finish(self) -> None:
        """Wait until the model is on the device whole, which `load` may leave to go on. Steps wait for it by themselves."""

    @property
    @abstractmethod
    def kernel_seconds(self) -> float:
        """Time spent on loading kernels so far."""

    @abstractmethod
    def contract(self, op: Op) -> Contract | Manifest:
        """The contract of an operation's kernel."""

    def begin(self) -> Sequence:
        """Begin a new sequence in the cache. This ends the previous one. The cache is zeroed unless all numbers are finite that
        it wrote, which a token shows (`engine.graph.doubts`)."""
        self._current.begin()
        self._current = Sequence()
        unread, self._unread = self._unread, ()
        if self._closed:
            return self._current
        if self._doubtful or not all(self.is_token(int(self.own.buffers.fetched(number)[0])) for number in unread):
            self.clear_own()
            self._doubtful = False
        return self._current

    def clear_own(self) -> None:
        """Zero the cache of the backend's own sequence, and copies of it."""
        self.own.clear(0)

    def finite(self) -> None:
        """Say that the logits of the last step of the backend's own sequence were finite."""
        self._doubtful = False

    def prefill(self, sequence: Sequence, ids: Tokens[int], sampling: SamplingParams | None = None) -> None:
        """Prefill a prompt after the tokens that the sequence already has, and choose the next token: the most likely one, or
        with `sampling` one drawn with the seed's first random number."""
        self._check_open()
        check_room(sequence.length, len(ids), self.max_seq_len)
        if sampling is not None and not sampling.simple:
            what = f"a step of one sequence draws from 1 to {TOP_K_LIMIT} tokens, without penalties, bias, min-p or logprobs"
            raise UsageError(what, fix="take a batch of several rows for these")
        sequence.sampling, sequence.start = sampling, sequence.length + len(ids) - 1
        if sampling is not None:
            self.own.set([sequence])
        self._prefill_chunks(sequence, ids, sequence.output_mode)

    def extend(self, sequence: Sequence, ids: Tokens[int]) -> None:
        """Prefill a part of a prompt after the tokens that the sequence already has, and choose no token: more of the prompt
        follows."""
        self._prefill_chunks(sequence, ids, "none")

    def prompt_logits(self, sequence: Sequence, ids: Tokens[int]) -> NDArray[np.float32]:
        """Prefill a prompt and return the logits of its last token, (vocab,)."""
        self._prefill_chunks(sequence, ids, "logits")
        return self.own.logits()[0]

    def decode(self, sequence: Sequence, token: int) -> int:
        """Process one token; returns the next one."""
        return next(self.stream_tokens(sequence, token, 1))

    def decode_logits(self, sequence: Sequence, token: int) -> NDArray[np.float32]:
        """Process one token; returns the logits after it, (vocab,)."""
        self._send(sequence, token)
        self.own.run("logits", self.step.decode_variants(sequence.length + 1))
        sequence.length += 1
        return self.own.logits()[0]

    def token(self) -> int:
        """The token that the last step chose; waits for it. ModelError if its logits were not finite."""
        token = self.in_vocabulary(int(self.own.buffers.latest()[0]))
        self.finite()
        return token

    def stream_tokens(self, sequence: Sequence, token: int, limit: int) -> Iterator[int]:
        """Process `token`, yield the next token, process that one, and so on, `limit` times at most. Tokens are chosen by the
        output mode set in `prefill`; the n-th token after the prompt uses the n-th random number."""
        generation, output_mode = sequence.begin(), sequence.output_mode
        start, launched = sequence.length, 0
        in_flight: deque[int] = deque()
        self._send(sequence, token)
        steps, variants = self.own, self.step.decode_variants
        try:
            for yielded in range(limit):
                sequence.check(generation)
                while launched < min(yielded + 1 + self.ahead, limit) and (
                    launched <= yielded or start + launched < self.max_seq_len
                ):
                    if launched:
                        check_room(sequence.length, 1, self.max_seq_len)
                    steps.run(output_mode, variants(start + launched + 1))
                    steps.buffers.fetch(launched)
                    in_flight.append(launched)
                    launched += 1
                    sequence.length = start + launched
                next_token = int(steps.buffers.fetched(in_flight.popleft())[0])
                self._doubtful, self._unread = not self.is_token(next_token), tuple(in_flight)
                yield self.in_vocabulary(next_token)
        finally:
            # Steps that were enqueued ahead and not consumed are dropped: later steps write their slots of the cache again.
            if sequence.is_current(generation):
                sequence.length = start + launched - len(in_flight)

    def decode_steps(self, sequences: int) -> DecodeSteps:
        """Memory and steps for `sequences` sequences in addition to the backend's own. StepError or an EngineError if the step
        declares none for that number, DeviceError if they do not fit."""
        self._check_open()
        return self._prepared(graphs_of(self.step, sequences))

    def paged_steps(self, rows: int, pages: int | None) -> PagedSteps:
        """Memory and steps for up to `rows` rows over a pool of `pages` pages, or of as many as fit. UsageError if the step has
        none, DeviceError if they do not fit."""
        self._check_open()
        require_pages(self.step)
        bucket = bucket_of(rows, self.buckets)
        step = self.step.with_pages(self._pages_that_fit(bucket) if pages is None else pages)
        self._steps = [steps for steps in self._steps if not steps.closed]
        self._steps.append(found := PagedSteps(step, self._paged_device(step, bucket)))
        return found

    @abstractmethod
    def _pages_that_fit(self, bucket: int) -> int:
        """The pages of the largest pool next to what up to `bucket` rows need."""

    @abstractmethod
    def _paged_device(self, step: Step, bucket: int) -> PagedDevice:
        """Memory for steps over pages of up to `bucket` rows."""

    def _prepared(self, graphs: DecodeGraphs) -> DecodeSteps:
        """Memory and steps for these graphs, which the backend closes."""
        self._steps = [steps for steps in self._steps if not steps.closed]
        self._steps.append(found := DecodeSteps(self, graphs))
        return found

    def close(self) -> None:
        """Free the model's resources; idempotent."""
        self._current.begin()
        with ExitStack() as releases:  # in reverse order, even after a failure
            releases.callback(self._release)
            while self._steps:
                releases.callback(self._steps.pop().close)

    def check_vocabulary(self, ids: Tokens[int]) -> None:
        """UsageError for the first token outside the vocabulary."""
        size = self.config.vocab_size
        if (outside := next((token for token in ids if not 0 <= token < size), None)) is not None:  # in line: of thousands
            raise UsageError(f"token {outside} is not in the vocabulary of {size}")

    def in_vocabulary(self, token: int) -> int:
        """A token that a step chose; ModelError if it is none, because the logits were not finite."""
        if not self.is_token(token):
            raise ModelError("the logits are not finite, so no token can be chosen", fix="check the weights and their dtype")
        return token

    def is_token(self, token: int) -> bool:
        """Whether a number that a step chose is a token: it is none if the logits were not finite."""
        return 0 <= token < self.config.vocab_size

    def _prefill_chunks(self, sequence: Sequence, ids: Tokens[int], output_mode: OutputMode) -> None:
        """Prefill a prompt chunk by chunk; only the last chunk has the output mode `output_mode`."""
        self._check_open()
        sequence.begin()
        check_room(sequence.length, len(ids), self.max_seq_len)
        self.check_vocabulary(ids)
        self._doubtful, self._unread = True, ()
        for start in range(0, len(ids), self.chunk_tokens):
            chunk = list(ids[start : start + self.chunk_tokens])
            past, last = sequence.length, len(chunk) - 1
            tokens = self._padded(len(chunk), past)
            positions = np.arange(past, past + tokens, dtype=np.int32)
            padded = chunk + chunk[-1:] * (tokens - len(chunk))
            inputs = {"ids": padded, "positions": positions, "lengths": past + len(chunk), "last": last, "draw": past + last}
            inputs |= self.own.cache.inputs(np.zeros(tokens, np.int32), positions)
            self._run_chunk(inputs, tokens, past, output_mode if start + len(chunk) == len(ids) else "none")
            sequence.length += len(chunk)
            sequence.prompt += chunk

    def _padded(self, tokens: int, past: int) -> int:
        """The number of tokens that a chunk of `tokens` after `past` others is computed with. Tokens of nobody follow those of
        the prompt: their keys and values are in slots that later tokens write before they are read. Attention multiplies them
        by 0, so that they are the prompt's last token, rather than one whose values may overflow."""
        return tokens

    def _send(self, sequence: Sequence, token: int) -> None:
        """Set the inputs of a decode step."""
        self._check_open()
        check_room(sequence.length, 1, self.max_seq_len)
        self.check_vocabulary([token])
        self._doubtful, self._unread = True, ()
        sequence.token = token
        self.own.send([sequence])

    @property
    def watched(self) -> tuple[int, ...]:
        """Descriptors that can be read once the device has failed while nothing was asked of it; `wait` then raises why."""
        return ()

    @property
    def closed(self) -> bool:
        """Whether nothing runs on it any more: it was closed, or a failure ended it."""
        return self._closed

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the engine is closed", fix="load the model again")

    @property
    @abstractmethod
    def _closed(self) -> bool:
        """Whether the backend was closed."""

    @abstractmethod
    def _run_chunk(self, inputs: dict[str, Any], tokens: int, past: int, output_mode: OutputMode) -> None:
        """Run a prefill step of the backend's own sequence."""

    @abstractmethod
    def _release(self) -> None:
        """Free the model's resources, apart from those of decode steps; idempotent."""
