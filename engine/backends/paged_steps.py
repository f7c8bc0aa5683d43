"""Steps over pages on a device: their pool, inputs and prepared steps, for rows up to a number and for chunks of prompts.

A device has one `PagedSteps` for a server. Each bucket of rows (`tilec.step.step.BUCKETS`) is a step of its own, prepared when
it is first used; all run on the memory of the largest, whose first rows are theirs. The host sends where each row's token goes
before every step, and which token only when a sequence joins: a step writes the next one itself. What the host sends it checks
whole, with its tables (`engine.graph.pages`); so no step relies on what another wrote, except for a token, which is in the
vocabulary whatever the logits are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.backends.decode_steps import (
    DECODE_MODES,
    GREEDY,
    LASTING,
    REPORTS,
    TOKEN_STATE,
    PreparedStep,
    StepBuffers,
    row_settings,
    write_state,
)  # fmt: skip
from engine.cache_layout import Run
from engine.errors import UsageError
from engine.graph.integers import GraphError, Replay
from engine.graph.pages import Packed
from engine.sampling import SamplingParams, settings
from engine.sequence import Sequence as Generation
from tilec.step.graph import CHUNK, SERVE, Kind, StepGraph
from tilec.step.step import ALL_KINDS, BUCKETS, OUTPUT_MODES, OutputMode, Step

MOST_ROWS: Final = BUCKETS[-1]


def bucket_of(rows: int, buckets: Sequence[int]) -> int:
    """The smallest bucket for a number of rows."""
    return next(bucket for bucket in buckets if rows <= bucket)


class PagedDevice(ABC):
    """What a device does for steps over pages, of up to `bucket` rows. `rows` are the buffers of steps that serve, `prompt`
    those of chunks; both have the same pools."""

    bucket: int
    rows: StepBuffers
    prompt: StepBuffers

    def padded(self, tokens: int, filled: int) -> tuple[int, int]:
        """The numbers of tokens and of copied slots with which a chunk is computed that has `tokens` and needs `filled`: at
        most 63 tokens more, and no more slots than there are."""
        return tokens, filled

    def prepare_chunk(self) -> bool:
        """Make some of what chunks may need ready, in less than a millisecond; False if nothing is left."""
        return False

    @abstractmethod
    def prepare(self, bucket: int, output_mode: OutputMode) -> PreparedStep:
        """Verify the step that serves a bucket of rows in an output mode, and make it ready to run."""

    @abstractmethod
    def enqueue(self, step: Any) -> None:
        """Run or enqueue a prepared step on its current inputs."""

    @abstractmethod
    def run_chunk(self, inputs: Mapping[str, Any], tokens: int, past: int, output_mode: OutputMode) -> None:
        """Run or enqueue a chunk of `tokens` tokens, which copies as many slots and `past` more; inputs by role."""

    @abstractmethod
    def clear(self, slot: int, slots: int) -> None:
        """Zero `slots` slots from `slot` on in the pools of all layers, after what is enqueued and before what is not."""

    @abstractmethod
    def close(self) -> None:
        """Free prepared steps and memory; idempotent."""


class PagedSteps:
    """The steps of a model with a pool (`Step.with_pages`) on a device, for up to as many rows as its buffers have. Not
    thread-safe."""

    def __init__(self, step: Step, device: PagedDevice) -> None:
        self.step, self._device, self.bucket, self.closed = step, device, device.bucket, False
        few = step.few_layers(ALL_KINDS)  # no role that is asked for is a layer's own
        graphs = [*serve_graphs(step, self.bucket, few).values(), *chunk_graphs(step, 1, few).values()]
        self._named = {  # a chunk's roles that a step that serves has too are under the chunk's own names
            (graph.name, graph.role(buffer.name)): buffer
            for graph in graphs
            for buffer in graph.buffers.values()
            if buffer.kind in LASTING
        }
        self._prepared: dict[tuple[int, OutputMode], PreparedStep] = {}
        values, self.table_pages = step.values(), self._named[SERVE, "table"].shape[1]
        self.pages, self.page_tokens = values["pages"], values["page_tokens"]
        self.prompts: int = values["most_prompts"]
        """Of how many prompts a chunk has tokens at most."""
        self.chunk_slots, self.prompt_slots = values["chunk_slots"], values["prompt_slots"]
        """Slots of all tokens that the prompts of a chunk have so far; each prompt takes a multiple of the second."""
        self.items = self._named[SERVE, "partial"].shape[0]
        """Chunks of all rows' tokens that attention has room for: those of every row at its longest."""

    @property
    def device(self) -> PagedDevice:
        """What runs the steps."""
        return self._device

    def prepared(self, bucket: int, output_mode: OutputMode) -> PreparedStep:
        """The step of a bucket in an output mode; prepared on first use."""
        key = bucket, output_mode
        if key not in self._prepared:
            found = self._device.prepare(bucket, output_mode)
            check_replay(found.replay)
            self._prepared[key] = found
        return self._prepared[key]

    def send(self, **values: NDArray[np.int32]) -> None:
        """Set inputs of the next step by role, for all rows of the largest bucket. GraphError if a value is out of bounds."""
        self._device.rows.send(Kind.INPUT, {self._named[SERVE, role].name: value for role, value in values.items()})

    def set(self, rows: Sequence[Generation | None]) -> None:
        """Set how the tokens of each row's sequence are sampled."""
        values = row_settings([*rows, *[None] * (self.bucket - len(rows))], self._vocabulary)
        self._device.rows.send(Kind.SETTING, {self._named[SERVE, role].name: value for role, value in values.items()})

    def begin_row(self, row: int, sampling: SamplingParams | None, prompt: Iterable[int], token: int) -> None:
        """Set what sampling has to know of each token for a new sequence in a row, if its parameters ask for it: its prompt,
        and the one token generated so far."""
        if sampling is not None and sampling.adjusts:
            names = [self._named[SERVE, role].name for role in TOKEN_STATE]
            write_state(self._device.rows, names, row, sampling, (prompt, [token]), self._vocabulary)

    def constrain(self, row: int, token: int, marks: NDArray[np.int32]) -> None:
        """Set, without waiting for steps of other rows, the token that a row processes in the next step and the marks for the
        one after it. The tokens of the row's last step were fetched."""
        rows = self._device.rows
        rows.stage(self._named[SERVE, "ids"].name, row, np.array([token], np.int32))
        rows.stage(self._named[SERVE, "state"].name, row * self._vocabulary, marks)

    @property
    def _vocabulary(self) -> int:
        return self._named[SERVE, "logits"].shape[1]

    def run(self, bucket: int, output_mode: OutputMode) -> None:
        """Run or enqueue the step of a bucket on its current inputs."""
        self._device.enqueue(self.prepared(bucket, output_mode))

    def clear(self, runs: Iterable[Run]) -> None:
        """Zero slots of the pools before the next step or chunk."""
        for run in runs:
            self._device.clear(run.slot, run.tokens)

    def fetch(self, number: int, *, reported: bool) -> None:
        """Start copying the last step's tokens to the host, as step `number`, and if `reported` probabilities of tokens."""
        self._device.rows.fetch(number, [self._named[SERVE, role].name for role in REPORTS] if reported else ())

    def logprobs(self, number: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Of step `number`, fetched as `reported`: of each row the logarithms of probabilities, of its token and of the most
        likely ones, and these; undefined of rows that ask for none."""
        values, tokens = (self._device.rows.fetched_output(number, self._named[SERVE, role].name) for role in REPORTS)
        return values, tokens

    def fetched(self, number: int) -> NDArray[np.int32]:
        """The tokens of step `number`, (rows of the largest bucket,); waits for them."""
        return self._device.rows.fetched(number)

    def logits(self) -> NDArray[np.float32]:
        """The logits of the last step, (rows of the largest bucket, vocab); waits for it."""
        return self._device.rows.floats(self._named[SERVE, "logits"].name)

    def chunk(
        self, ids: Sequence[int], packed: Packed, ended: Mapping[int, SamplingParams | None], output_mode: OutputMode
    ) -> None:  # fmt: skip
        """Run or enqueue a chunk of prompts, of which those end whose last token is in a row of `ended`, with how they are
        sampled. Tokens of nobody may follow: their keys and values go to the first slots of the pool, which belong to nobody;
        no prompt's token attends to them."""
        tokens, filled = self._device.padded(len(ids), packed.filled)
        more, room = tokens - len(ids), self.prompts - len(ended)
        if output_mode == "sample":
            drawn = [settings(GREEDY if one is None else one, 0, 1) for one in (*ended.values(), *[None] * room)]
            values = {self._named[CHUNK, role].name: np.array([one[role] for one in drawn]) for role in drawn[0]}
            self._device.prompt.send(Kind.SETTING, values)
        inputs = {
            "ids": [*ids, *[0] * more], "positions": _lengthened(packed.positions, more),
            "slots": np.concatenate([packed.slots, np.arange(more, dtype=np.int32)]), "table": packed.table,
            "firsts": _lengthened(packed.firsts, more), "lasts": _lengthened(packed.lasts, more),
            "last": np.array([*ended, *[0] * room], np.int32), "draw": np.zeros(self.prompts, np.int32),
        }  # fmt: skip
        self._device.run_chunk(inputs, tokens, filled - tokens, output_mode)

    def chosen(self) -> list[int]:
        """The tokens that the last chunk chose, of the prompts that ended, in order, and others after them; waits for them."""
        return self._device.prompt.latest().tolist()

    def prompt_logits(self) -> NDArray[np.float32]:
        """The logits of the last chunk, which gave them, of the first prompt that ended, (vocab,); waits for them."""
        return self._device.prompt.floats(self._named[CHUNK, "logits"].name, 1)[0]

    def close(self) -> None:
        """Free steps and memory; idempotent."""
        if not self.closed:
            self.closed = True
            with ExitStack() as releases:
                releases.callback(self._device.close)
                self._prepared.clear()


def _lengthened(values: NDArray[np.int32], more: int) -> NDArray[np.int32]:
    """The values, and the last one `more` times."""
    return np.concatenate([values, np.full(more, values[-1])])


def require_pages(step: Step) -> None:
    """UsageError if a step has no modes whose caches are in pages."""
    if SERVE not in step.declaration.modes:
        raise UsageError("the model's step has no cache in pages", fix="take a batch")


def serve_graphs(step: Step, bucket: int, layers: int | None = None) -> dict[OutputMode, StepGraph]:
    """The steps that process a token of each of `bucket` rows; of some `layers` only, if they are given."""
    return {output_mode: step.graph(SERVE, output_mode, tokens=bucket, layers=layers) for output_mode in DECODE_MODES}


def chunk_graphs(step: Step, tokens: int, layers: int | None = None) -> dict[OutputMode, StepGraph]:
    """The steps that process a chunk of a prompt; of some `layers` only, if they are given."""
    return {output_mode: step.graph(CHUNK, output_mode, tokens=tokens, layers=layers) for output_mode in OUTPUT_MODES}


def check_replay(replay: Replay) -> None:
    """GraphError if a step writes an input that could be out of its bounds at some replay: of steps over pages the host tracks
    no integers, so whatever a kernel writes must be within them."""
    bounds = {buffer.name: buffer for buffer in replay.inputs}
    for written in replay.written_values:
        buffer = bounds.get(written.buffer)
        if written.above or buffer is None or buffer.low is None or buffer.high is None:
            raise GraphError(f"input `{written.buffer}` is written, and counts from what it was", where=f"step `{replay.name}`")
        if written.low < buffer.low or written.high > buffer.high or buffer.distinct:
            raise GraphError(f"input `{written.buffer}` is written, and could leave its bounds", where=f"step `{replay.name}`")
