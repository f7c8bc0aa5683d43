"""Steps over pages on a GPU: a CUDA graph for each bucket, captured when it is first used, and chunks of prompts.

All buckets run on the buffers of the largest, whose first rows are theirs, and all steps and chunks on one arena: the stream
runs one at a time. The pool takes what memory is left.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from math import prod
from typing import Any, ClassVar, Final, Protocol

from engine.backends.decode_steps import DECODE_MODES, PreparedStep, lasting_buffers
from engine.backends.device_buffers import DeviceBuffers
from engine.backends.device_memory import RESERVE_BYTES, DeviceMemory
from engine.backends.launches import Launches
from engine.backends.paged_steps import PagedDevice, serve_graphs
from engine.backends.prompts import PrefillSteps, only_mode, padded_lengths, padded_room, union
from engine.errors import DeviceError
from engine.graph.invariance import verify_invariance
from engine.graph.plan import ALIGNMENT, plan_memory
from tilec.runtime import Bundle, Driver, Plan
from tilec.step.graph import CHUNK, SERVE, Buffer, Constant, Kind, Op, StepGraph
from tilec.step.requests import choices
from tilec.step.step import ALL_KINDS, ALL_PAIRS, OUTPUT_MODES, OutputMode, Step

PREPARING_SECONDS: Final = 0.0003
"""How long something that prompts may need is prepared at least, unless nothing is left. The last part of it takes a few tenths
of a millisecond more, so that all fits next to a step of a small model."""

MOST_SLOTS: Final = 1 << 29
"""Slots of a pool that kernels can index."""


class LoadedModel(Protocol):
    """What steps over pages need of a loaded backend on a GPU."""

    buckets: ClassVar[tuple[int, ...]]
    step: Step
    max_seq_len: int
    chunk_tokens: int
    bundle: Bundle
    driver: Driver
    stream: int
    memory: DeviceMemory

    @property
    def launches(self) -> Launches: ...

    def captured(self, graph: StepGraph, own: Mapping[str, tuple[int, int]], arena: tuple[int, int]) -> PreparedStep: ...

    def enqueue(self, step: Any) -> None: ...

    def discard(self, step: Any) -> None: ...

    def wait(self) -> None: ...

    def finish(self) -> None: ...

    def ending(self) -> tuple[Plan, ...]: ...


class DevicePages(PagedDevice):
    """Steps over pages of a loaded backend, for up to `bucket` rows. GraphError if a row's sums could depend on the number of
    rows, DeviceError if there is too little memory."""

    expected: ClassVar[tuple[OutputMode, ...]] = ("sample", "argmax", "none")
    """Output modes whose chunks of all lengths are prepared before prompts need them."""

    def __init__(self, backend: LoadedModel, step: Step, bucket: int) -> None:
        self._backend, self._step, self.bucket = backend, step, bucket
        self._captured: list[PreparedStep] = []
        driver, stream = backend.driver, backend.stream
        graphs = list(serve_graphs(step, bucket).values())
        self._chunks = PrefillSteps(step, min(backend.chunk_tokens, backend.max_seq_len), backend.launches, CHUNK)
        size = max(self._chunks.memory.size, *(plan_memory(graph).size for graph in graphs))
        self._memory = memory = DeviceMemory(driver, stream)
        self._releases = ExitStack()
        self._releases.callback(backend.wait)  # freed memory goes back to the device once the stream is synchronised
        self._releases.callback(memory.close)
        try:
            memory.require(size + lasting_bytes(graphs) + lasting_bytes([self._chunks.whole]) + pool_bytes(graphs[0]))
            pools = lasting_buffers(graphs, Kind.POOL)
            with ThreadPoolExecutor(1) as other:  # a driver takes as long for 100 GB as the check does
                added = other.submit(self._add_pools, pools, driver.context())
                verify_rows(backend, step, bucket)
                added.result()
            slots = prod(step.values()[name] for name in ("pages", "page_tokens"))
            self._pools = [(memory.allocations[buffer.name][0], buffer.bytes // slots) for buffer in pools]
            self._arena = (self._allocate_arena(size), size)
            table = next(buffer.name for buffer in graphs[0].of_kind(Kind.INPUT) if graphs[0].role(buffer.name) == "table")
            self.rows = rows = DeviceBuffers(driver, stream, graphs, "batch.token", self._arena, ("ids", table))
            self._releases.callback(rows.close)
            self.prompt = prompt = DeviceBuffers(driver, stream, [self._chunks.whole], "chunk.token", self._arena)
            self._releases.callback(prompt.close)
            self._rows, self._prompt = rows, prompt
            pointers = {name: pointer for name, (pointer, _) in self._allocations(prompt).items()}
            self._chunks.bind(pointers, self._arena[0], later=True, lengths=self._likely())
        except BaseException:
            self.close()
            raise

    def padded(self, tokens: int, filled: int) -> tuple[int, int]:
        return padded_room(tokens, filled, self._chunks.largest, self._step.values()["chunk_slots"])

    def prepare_chunk(self) -> bool:
        ends = time.perf_counter() + PREPARING_SECONDS
        left = self._chunks.prepare_next()
        while left and time.perf_counter() < ends:
            left = self._chunks.prepare_next()
        return left

    def _likely(self) -> list[tuple[int, int, OutputMode]]:
        """Chunks that prompts may need, tokens, past and output mode, those first that have most in common with others: tiles
        change with the size of a length, so that powers of two load nearly all kernels."""
        lengths = padded_lengths(self._chunks.largest)
        powers = [tokens for tokens in lengths if tokens.bit_count() == 1]
        chunks = dict.fromkeys((*product(powers, self.expected), *product(lengths, self.expected)))
        return [(tokens, self.padded(tokens, tokens)[1] - tokens, output_mode) for tokens, output_mode in chunks]

    def prepare(self, bucket: int, output_mode: OutputMode) -> PreparedStep:
        graph = self._step.graph(SERVE, output_mode, tokens=bucket)
        self._captured.append(found := self._backend.captured(graph, self._allocations(self._rows), self._arena))
        return found

    def enqueue(self, step: PreparedStep) -> None:
        self._backend.enqueue(step)

    def run_chunk(self, inputs: Mapping[str, Any], tokens: int, past: int, output_mode: OutputMode) -> None:
        self._backend.finish()
        prepared = self._chunks.prepared(tokens, past, output_mode)
        self._prompt.send_to(prepared.inputs, {name: inputs[self._chunks.whole.role(name)] for name in prepared.inputs})
        prepared.launch(self._backend.stream)
        for plan in self._backend.ending():
            plan.launch(self._backend.stream, overlap=True)

    def clear(self, slot: int, slots: int) -> None:
        for pointer, slot_bytes in self._pools:
            self._backend.driver.fill(pointer + slot * slot_bytes, 0, slots * slot_bytes, self._backend.stream)

    def _add_pools(self, pools: Iterable[Buffer], context: int) -> None:
        """Allocate and zero pools, in a thread of their own."""
        self._memory.driver.use_context(context)
        for buffer in pools:
            self._memory.add_zeroed(buffer)

    def _allocate_arena(self, size: int) -> int:
        """Memory for activations, which is freed with these steps."""
        return self._memory.allocate(size)

    def close(self) -> None:
        """Free the captured steps and the memory, once nothing runs; idempotent."""
        with self._releases as releases:
            while self._captured:
                releases.callback(self._backend.discard, self._captured.pop())
            releases.callback(self._backend.wait)

    def _allocations(self, buffers: DeviceBuffers) -> dict[str, tuple[int, int]]:
        return self._backend.memory.allocations | self._memory.allocations | buffers.allocations


def verify_rows(backend: LoadedModel, step: Step, bucket: int) -> None:
    """GraphError if the sums of a row could be added in another order in another bucket, or those of a token in a chunk of
    another length. Layers are alike, and lengths for which the same tiles are chosen, so one of each kind is compared."""

    def constants(op: Op) -> Mapping[str, Constant]:
        return backend.launches.bundled_kernel(op).manifest.constants

    layers = step.few_layers(ALL_KINDS)
    lengths = sorted({1, *(one.first for one in choices(only_mode(step, CHUNK), backend.bundle.tuning))})
    for output_mode in DECODE_MODES:
        buckets = [one for one in backend.buckets if one <= bucket]
        verify_invariance([step.graph(SERVE, output_mode, tokens=one, layers=layers) for one in buckets], constants)
    verify_invariance([step.graph(CHUNK, "none", tokens=tokens, layers=layers) for tokens in lengths], constants)


def pages_that_fit(backend: LoadedModel, bucket: int) -> int:
    """The pages of the largest pool next to the buffers and the arena of steps of up to `bucket` rows; DeviceError if not even
    one sequence's would fit."""
    step = backend.step.with_pages(1)
    needed = steps_bytes(step, bucket, min(backend.chunk_tokens, backend.max_seq_len))
    free, _ = backend.driver.memory()
    values = step.values()
    layers = step.few_layers(ALL_KINDS)
    page_bytes = pool_bytes(step.graph(SERVE, "argmax", tokens=bucket, layers=layers)) // layers * step.layers
    pages = min((free - RESERVE_BYTES - needed) // page_bytes, MOST_SLOTS // values["page_tokens"])
    if pages <= -(-bucket // values["page_tokens"]):
        what = f"{free} bytes are free, and no page of {page_bytes} is left next to the {needed} that steps need"
        raise DeviceError(what, fix="take fewer rows, or a smaller model")
    return pages


def steps_bytes(step: Step, bucket: int, chunk_tokens: int) -> int:
    """Bytes of the arena and of the lasting buffers but pools, of steps of `bucket` rows and of chunks. An arena grows by as
    much with each inner layer, so that it is planned for a few; for all, if they are of several kinds."""

    def planned(layers: int) -> tuple[int, int]:
        graphs = [step.graph(SERVE, output_mode, tokens=bucket, layers=layers) for output_mode in DECODE_MODES]
        chunk = union(step.graph(CHUNK, output_mode, tokens=chunk_tokens, layers=layers) for output_mode in OUTPUT_MODES)
        arena = max(plan_memory(graph).size for graph in (*graphs, chunk))
        return arena, lasting_bytes(graphs) + lasting_bytes([chunk])

    few = step.few_layers(ALL_KINDS)
    arena, lasting = planned(few)
    if step.layers > few:
        arena += (step.layers - few) * (planned(ALL_PAIRS)[0] - arena)
    return arena + lasting


def lasting_bytes(graphs: list[StepGraph]) -> int:
    """Bytes of the buffers of steps that outlive them, except for pools; each is allocated with the driver's alignment."""
    kinds = (Kind.CACHE, Kind.OUTPUT, Kind.INPUT, Kind.SETTING)
    return sum(-(-buffer.bytes // ALIGNMENT) * ALIGNMENT for buffer in lasting_buffers(graphs, *kinds))


def pool_bytes(graph: StepGraph) -> int:
    """Bytes of the pools of a step."""
    return sum(buffer.bytes for buffer in graph.of_kind(Kind.POOL))
