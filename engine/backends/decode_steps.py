"""Decode steps of `n` sequences, one or several: their buffers, inputs and prepared steps. A backend runs them.

The step says what a step of `n` sequences is: `decode` for one, with the kernels of one row, `batch` for several. It also names
the buffers, and the host knows their roles only (`StepGraph.role`). The `row` of a sequence is its row in every input and
output, and its part of every cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Rows
from contextlib import ExitStack
from math import prod
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.cache_layout import CacheLayout, ContiguousCache, paired
from engine.graph.integers import InputValues, Replay
from engine.sampling import SamplingParams, row_factors, row_numbers, settings, token_bias, token_marks
from engine.sequence import Sequence
from tilec.step.graph import Buffer, Kind, StepGraph
from tilec.step.step import OUTPUT_MODES, OutputMode, Step, Variants

DECODE_MODES: Final[tuple[OutputMode, ...]] = tuple(mode for mode in OUTPUT_MODES if mode != "none")
"""Output modes of a decode step, which always has an output."""

DecodeGraphs = Mapping[tuple[OutputMode, Variants], StepGraph]
"""Graphs by output mode and variants (`Step.decode_variants`)."""

LASTING: Final = (Kind.CACHE, Kind.POOL, Kind.OUTPUT, Kind.INPUT, Kind.SETTING)
"""Kinds of the buffers that belong to sequences and outlive a step."""

TOKEN_STATE: Final = ("state", "bias")
"""Inputs of what sampling knows of each token of the vocabulary. They are written row by row, when a sequence begins."""

REPORTS: Final = ("logprobs", "top_tokens")
"""Outputs with probabilities of tokens."""

GREEDY: Final = SamplingParams(top_k=1)
"""Sampling for a greedy sequence among sampled ones: its only candidate is the most likely token."""


class StepBuffers(ABC):
    """Memory of a device for the buffers of kinds `LASTING` of some steps, by name; caches and `TOKEN_STATE` are zero at
    first."""

    @abstractmethod
    def send(self, kind: Kind, values: Mapping[str, Any]) -> None:
        """Set inputs or settings before the next step. GraphError if a value is out of its buffer's bounds."""

    @abstractmethod
    def copy(self, target: str, slot: int, source: StepBuffers, name: str, source_slot: int, elements: int) -> None:
        """Copy `elements` elements from one cache to another; slots are numbers of elements, too."""

    @abstractmethod
    def clear(self, name: str, first: int, elements: int) -> None:
        """Zero `elements` elements of a cache from element `first` on, after what is enqueued and before what is not."""

    @abstractmethod
    def write(self, name: str, first: int, values: NDArray[Any]) -> None:
        """Overwrite a part of an input of `TOKEN_STATE`, from its element `first` on, before the next step."""

    @abstractmethod
    def stage(self, name: str, first: int, values: NDArray[Any]) -> None:
        """Overwrite a part of an input from its element `first` on, before the next step and without waiting. The caller does
        not stage the same part again before a later step's tokens were fetched."""

    @abstractmethod
    def fetch(self, number: int, also: Rows[str] = ()) -> None:
        """Start copying the last step's tokens to the host, and its outputs `also`, as step `number`."""

    @abstractmethod
    def fetched_output(self, number: int, name: str) -> NDArray[Any]:
        """An output of step `number` that was fetched with its tokens, in its buffer's shape; waits for it."""

    @abstractmethod
    def fetched(self, number: int) -> NDArray[np.int32]:
        """The tokens of step `number`, (sequences,); waits for them."""

    @abstractmethod
    def latest(self) -> NDArray[np.int32]:
        """The tokens of the last step, (sequences,); waits for it. No fetched step may be outstanding."""

    @abstractmethod
    def floats(self, name: str, rows: int | None = None) -> NDArray[np.float32]:
        """An output of the last step, in its buffer's shape, or of its first axis so many; waits for it."""

    @abstractmethod
    def part(self, name: str, first: int, count: int) -> NDArray[np.float32]:
        """Elements `first` to `first + count` of an output of the last step, (count,), or up to its end; waits for it. No other
        element leaves the device."""

    @abstractmethod
    def close(self) -> None:
        """Free the memory; idempotent."""


class PreparedStep(Protocol):
    """A step that a device can run again and again."""

    @property
    def replay(self) -> Replay: ...


class StepRunner(ABC):
    """What a device does for decode steps. Steps are of its own kind, as `prepare` returned them."""

    step: Step
    max_seq_len: int
    """Capacity of a sequence's cache in tokens."""

    @abstractmethod
    def allocate(self, graphs: Rows[StepGraph], token: str) -> StepBuffers:
        """Memory for the buffers of some steps of the same sequences; `token` names the output with the chosen tokens."""

    @abstractmethod
    def prepare(self, graph: StepGraph, buffers: Any) -> PreparedStep:
        """Verify a step and make it ready to run on some buffers."""

    @abstractmethod
    def enqueue(self, step: Any) -> None:
        """Run or enqueue a prepared step on its current inputs."""

    @abstractmethod
    def discard(self, step: Any) -> None:
        """Free a prepared step that is not running."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until all enqueued steps are done."""


class DecodeSteps:
    """Decode steps on a loaded backend, given as graphs of the same sequences. Not thread-safe."""

    def __init__(self, runner: StepRunner, decode_graphs: DecodeGraphs) -> None:
        self._graphs, self._runner, self.closed = decode_graphs, runner, False
        graphs = list(decode_graphs.values())
        self.sequences = sequences = graphs[0].sequences
        self._named = {
            graph.role(buffer.name): buffer for graph in graphs for buffer in graph.buffers.values() if buffer.kind in LASTING
        }
        self._caches = {role: buffer for role, buffer in self._named.items() if buffer.kind is Kind.CACHE}
        slots = graphs[0].buffers["rope_table"].shape[0]
        self.cache: CacheLayout = ContiguousCache(slots, runner.max_seq_len)
        self._cache_slots = slots * sequences
        self._rows = np.arange(sequences, dtype=np.int32)
        self._inputs_known = InputValues()
        self._prepared: dict[tuple[OutputMode, Variants], PreparedStep] = {}
        self.buffers = runner.allocate(graphs, self._named["token"].name)
        try:
            for variants in {runner.step.decode_variants(filled) for filled in (1, runner.max_seq_len)}:
                self.prepared("argmax", variants)
        except BaseException:
            self.close()
            raise

    @property
    def slots(self) -> int:
        """Slots of the cache of each sequence."""
        return self._cache_slots // self.sequences

    @property
    def forms(self) -> tuple[tuple[OutputMode, Variants], ...]:
        """The output mode and the variants of each of its graphs, in their order."""
        return tuple(self._graphs)

    def prepared(self, output_mode: OutputMode, variants: Variants) -> PreparedStep:
        """The step in an output mode with some variants; prepared on first use."""
        key = output_mode, variants
        if key not in self._prepared:
            self._prepared[key] = self._runner.prepare(self._graphs[key], self.buffers)
        return self._prepared[key]

    def adopt(self, row: int, source: DecodeSteps, source_row: int, length: int) -> None:
        """Copy the first `length` tokens of a row of other steps to the cache of a row."""
        for role, buffer in self._caches.items():
            width = prod(buffer.shape) // self._cache_slots
            runs = paired(source.cache.runs(source_row, 0, length), self.cache.runs(row, 0, length))
            for taken, put in runs:
                self.buffers.copy(
                    buffer.name, put.slot * width, source.buffers, source._caches[role].name, taken.slot * width,
                    put.tokens * width,
                )  # fmt: skip

    def clear(self, row: int) -> None:
        """Zero the caches of a row, which no sequence has."""
        for buffer in self._caches.values():
            elements = prod(buffer.shape) // self.sequences
            self.buffers.clear(buffer.name, row * elements, elements)

    def set(self, rows: Iterable[Sequence | None]) -> None:
        """Set how the tokens of each row's sequence are sampled: what stays the same for all steps of a generation."""
        if "numbers" in self._named:
            values = row_settings(rows, self._vocabulary)
        else:
            slots = self._named["uniforms"].shape[1]
            by_row = [settings(one, first, slots) for one, first in map(_sampled, rows)]
            values = {role: np.array([of_row[role] for of_row in by_row]) for role in by_row[0]}
        self.buffers.send(Kind.SETTING, {self._named[role].name: array for role, array in values.items()})

    def begin_row(self, row: int, sampling: SamplingParams | None, prompt: Iterable[int], generated: Iterable[int]) -> None:
        """Set what sampling has to know of each token for a new sequence in a row, if its parameters ask for it. The prompt
        and the tokens generated so far are its own; further ones are counted on the device."""
        if sampling is not None and sampling.adjusts:
            names = [self._named[role].name for role in TOKEN_STATE]
            write_state(self.buffers, names, row, sampling, (prompt, generated), self._vocabulary)

    @property
    def _vocabulary(self) -> int:
        return self._named["logits"].shape[1]

    def logprobs(self, number: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Of step `number`, fetched with `reports`: for each row the logarithms of its token's probability and of those of the
        most likely ones, (sequences, 1 + n), and these tokens, (sequences, n). Both are undefined of rows that ask for none."""
        logprobs, tokens = (self.buffers.fetched_output(number, self._named[role].name) for role in REPORTS)
        return logprobs, tokens

    @property
    def reports(self) -> tuple[str, ...]:
        """The outputs of a step with probabilities."""
        return tuple(self._named[role].name for role in REPORTS if role in self._named)

    def send(self, rows: Rows[Sequence | None]) -> None:
        """Set the inputs of the next step: of each row's sequence the token to process and where it is. A step that chooses
        tokens updates them on the device for the step after it."""
        lengths = np.array([0 if sequence is None else sequence.length for sequence in rows], np.int32)
        values = {
            "ids": np.array([0 if sequence is None else max(0, sequence.token) for sequence in rows], np.int32),
            "positions": lengths, "lengths": lengths + 1,
            "going": np.array([sequence is not None for sequence in rows], np.int32),
            **self.cache.inputs(self._rows, lengths),
        }  # fmt: skip
        inputs = {self._named[role].name: value for role, value in values.items() if role in self._named}
        self._inputs_known.sent(inputs)
        self.buffers.send(Kind.INPUT, inputs)

    def run(self, output_mode: OutputMode, variants: Variants) -> None:
        """Run or enqueue a step with some variants on its current inputs. GraphError if an input could be out of bounds."""
        step = self.prepared(output_mode, variants)
        self.enqueued(step)
        self._runner.enqueue(step)

    def enqueued(self, step: PreparedStep) -> None:
        """Record that a step runs on the current inputs; GraphError if one could be out of bounds."""
        self._inputs_known.enqueue(step.replay)

    def logits(self) -> NDArray[np.float32]:
        """The logits of the last step, (sequences, vocab); waits for it."""
        return self.buffers.floats(self._named["logits"].name)

    def forget(self) -> None:
        """Drop prepared steps, none of which may be running; they are prepared again on demand."""
        while self._prepared:
            self._runner.discard(self._prepared.popitem()[1])

    def close(self) -> None:
        """Free steps and memory; idempotent."""
        if self.closed:
            return
        self.closed = True
        with ExitStack() as releases:  # in reverse order, even after a failure
            releases.callback(self.buffers.close)
            releases.callback(self.forget)
            self._runner.wait()


def row_settings(rows: Iterable[Sequence | None], vocabulary: int) -> dict[str, NDArray[Any]]:
    """How the token of each row is drawn, by role; most likely ones for rows without parameters."""
    params = list(map(_sampled, rows))
    return {
        "numbers": np.array([row_numbers(one, first, vocabulary) for one, first in params]),
        "factors": np.array([row_factors(one) for one, _ in params]),
    }


def _sampled(sequence: Sequence | None) -> tuple[SamplingParams, int]:
    """The parameters of a row, and the slot of its prompt's last token."""
    if sequence is None or sequence.sampling is None:
        return GREEDY, 0
    return sequence.sampling, sequence.start


def write_state(
    buffers: StepBuffers, names: Rows[str], row: int, sampling: SamplingParams, texts: tuple[Iterable[int], Iterable[int]],
    vocabulary: int,
) -> None:  # fmt: skip
    """Write what sampling has to know of each token to the caches `names` (`TOKEN_STATE`) of a row: from its parameters, the
    tokens of its prompt and those generated so far."""
    marks = token_marks(sampling, *texts, vocabulary)
    for name, values in zip(names, (marks, token_bias(sampling, vocabulary)), strict=True):
        buffers.write(name, row * vocabulary, values)


def graphs_of(step: Step, sequences: int) -> DecodeGraphs:
    """The steps that process a token of each of `sequences` sequences. StepError if the step declares none."""
    mode = "decode" if sequences == 1 else "batch"
    return {
        (output_mode, variants): step.graph(mode, output_mode, tokens=sequences, variants=variants)
        for output_mode in DECODE_MODES
        for variants in step.all_decode_variants()
    }


def prompt_caches(prefills: Iterable[StepGraph], decode: Iterable[StepGraph]) -> list[Buffer]:
    """The caches that only prefills of a sequence use: copies in 16 bits of those that its steps share."""
    known = {buffer.name for buffer in lasting_buffers(decode, Kind.CACHE)}
    return [buffer for buffer in lasting_buffers(prefills, Kind.CACHE) if buffer.name not in known]


def token_state(graphs: Iterable[StepGraph]) -> list[Buffer]:
    """The buffers of `TOKEN_STATE` of several steps, each once."""
    found = {
        buffer.name: buffer
        for graph in graphs
        for buffer in graph.of_kind(Kind.INPUT)
        if graph.role(buffer.name) in TOKEN_STATE
    }
    return list(found.values())


def lasting_buffers(graphs: Iterable[StepGraph], *kinds: Kind) -> list[Buffer]:
    """The buffers of some kinds of several steps, each once."""
    buffers = {buffer.name: buffer for graph in graphs for buffer in graph.buffers.values()}
    return [buffer for buffer in buffers.values() if buffer.kind in kinds]
