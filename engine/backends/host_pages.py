"""Steps over pages in arrays: of one interpreter, or of one for each of several ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Protocol

from engine.backends.block_sizes import block_sizes
from engine.backends.decode_steps import PreparedStep, StepBuffers, lasting_buffers
from engine.backends.paged_steps import PagedDevice, chunk_graphs, serve_graphs
from engine.graph.invariance import verify_invariance
from tilec.step.graph import CHUNK, SERVE, Kind, StepGraph
from tilec.step.step import OutputMode, Step


class ArrayBackend(Protocol):
    """What pages in arrays need of a backend: one interpreter, or several that have equal tables and a pool each of its heads
    (`engine.ranks.interpreter`)."""

    @property
    def buckets(self) -> Sequence[int]: ...

    def allocate(self, graphs: Sequence[StepGraph], token: str) -> Any:
        """Buffers of steps, which can `share` arrays of others."""
        ...

    def prepare(self, graph: StepGraph, buffers: Any) -> PreparedStep: ...

    def enqueue(self, step: Any) -> None: ...

    def run_with(self, graph: StepGraph, buffers: Any, inputs: Mapping[str, Any]) -> None:
        """Run a step of a chunk on inputs by role and the other buffers of `buffers`."""
        ...


class HostPages(PagedDevice):
    """Steps over pages in arrays of a backend. Chunks have the pools of the steps that serve."""

    def __init__(self, backend: ArrayBackend, step: Step, bucket: int) -> None:
        self._backend, self._step, self.bucket = backend, step, bucket
        serve, chunk = list(serve_graphs(step, bucket).values()), list(chunk_graphs(step, 1).values())
        rows, prompt = backend.allocate(serve, "batch.token"), backend.allocate(chunk, "chunk.token")
        prompt.share([buffer.name for buffer in lasting_buffers(chunk, Kind.POOL)], rows)
        self._pools = lasting_buffers(serve, Kind.POOL)
        self.rows: StepBuffers = rows
        self.prompt: StepBuffers = prompt
        verify_invariance([step.graph(SERVE, "sample", tokens=one) for one in backend.buckets if one <= bucket], block_sizes)

    def prepare(self, bucket: int, output_mode: OutputMode) -> PreparedStep:
        return self._backend.prepare(self._step.graph(SERVE, output_mode, tokens=bucket), self.rows)

    def enqueue(self, step: PreparedStep) -> None:
        self._backend.enqueue(step)

    def run_chunk(self, inputs: Mapping[str, Any], tokens: int, past: int, output_mode: OutputMode) -> None:
        graph = self._step.graph(CHUNK, output_mode, tokens=tokens, past=past)
        self._backend.run_with(graph, self.prompt, inputs)

    def clear(self, slot: int, slots: int) -> None:
        for buffer in self._pools:
            elements = prod(buffer.shape[2:])
            self.rows.clear(buffer.name, slot * elements, slots * elements)

    def close(self) -> None:
        self.rows.close()
        self.prompt.close()
