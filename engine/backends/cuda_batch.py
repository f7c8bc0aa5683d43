"""A batch on a GPU: `BatchSteps` with its own caches, inputs and arena; each step is one CUDA graph."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.backends.batch_steps import OUTPUT_MODES, BatchSteps
from engine.backends.device_memory import DeviceMemory, InputBlock
from engine.backends.token_ring import TokenRing
from engine.errors import BundleRefused
from engine.graph.integers import InputValues
from engine.graph.plan import plan_memory
from tilec.step.expressions import StepError
from tilec.step.graph import Kind
from tilec.step.step import OutputMode

if TYPE_CHECKING:
    from engine.backends.cuda import CapturedStep, CudaBackend


class CudaBatch(BatchSteps):
    """Caches, inputs, outputs and an arena for several sequences. Weights and kernels belong to the backend."""

    ahead = 1

    def __init__(self, backend: CudaBackend, sequences: int) -> None:
        self.sequences, self._backend, self._driver = sequences, backend, backend.driver
        self._stream, self.closed = backend.stream, False
        try:
            self._graphs = {
                (output_mode, short): backend.step.graph("batch", output_mode, tokens=sequences, short=short)
                for output_mode in OUTPUT_MODES
                for short in (False, True)
            }
        except StepError as error:
            raise BundleRefused(str(error), where=backend.bundle.path, fix="pack a bundle whose step serves batches") from None
        buffers = {buffer.name: buffer for graph in self._graphs.values() for buffer in graph.buffers.values()}
        self._caches = [buffer for buffer in buffers.values() if buffer.kind is Kind.CACHE]
        arena = max(plan_memory(graph).size for graph in self._graphs.values())
        self._memory = memory = DeviceMemory(self._driver, backend.stream)
        self._captured: dict[tuple[OutputMode, bool], CapturedStep] = {}
        self._inputs: list[InputBlock] = []
        self._inputs_known = InputValues()
        self._tokens: TokenRing | None = None
        try:
            memory.require(sum(buffer.bytes for buffer in self._caches) + arena)
            for buffer in self._caches:
                memory.add_zeroed(buffer)
            for buffer in buffers.values():
                if buffer.kind is Kind.OUTPUT:
                    memory.add(buffer.name, buffer.bytes)
            self._arena = (memory.allocate(arena), arena)
            for kind in (Kind.INPUT, Kind.SETTING):
                self._inputs.append(InputBlock(memory, (buffer for buffer in buffers.values() if buffer.kind is kind)))
            self._tokens = TokenRing(memory, "batch.token", sequences)
            for short in {backend.step.is_short(1), backend.step.is_short(backend.max_seq_len)}:
                self.captured_step("argmax", short)
        except BaseException:
            self.close()
            raise

    def captured_step(self, output_mode: OutputMode, short: bool = False) -> CapturedStep:
        """The step in an output mode, or its variant for short context; captured on first use."""
        if (output_mode, short) not in self._captured:
            allocations = self._backend.memory.allocations | self._memory.allocations
            for block in self._inputs:
                allocations |= block.allocations
            self._captured[output_mode, short] = self._backend.captured(
                self._graphs[output_mode, short], allocations, self._arena
            )
        return self._captured[output_mode, short]

    def adopt(self, row: int, length: int) -> None:
        for buffer in self._caches:
            row_bytes = buffer.bytes // self.sequences
            source, _ = self._backend.memory.allocations[buffer.name.removeprefix("batch.")]
            target = self._memory.allocations[buffer.name][0] + row * row_bytes
            self._driver.copy_on_device(target, source, length * (row_bytes // buffer.shape[1]), self._stream)

    def set(self, values: Mapping[str, NDArray[Any]]) -> None:
        self._inputs[1].send(**values)

    def send(self, inputs: Mapping[str, NDArray[np.int32]]) -> None:
        self._inputs_known.sent(inputs)
        self._inputs[0].send(**inputs)

    def run(self, output_mode: OutputMode, short: bool) -> None:
        step = self.captured_step(output_mode, short)
        self._inputs_known.enqueue(step.replay)
        self._driver.launch_graph(step.executable, self._stream)

    def fetch(self, number: int) -> None:
        self._ring.fetch(number)

    def fetched(self, number: int) -> NDArray[np.int32]:
        return self._ring.fetched(number)

    @property
    def _ring(self) -> TokenRing:
        assert self._tokens is not None  # set in `__init__`
        return self._tokens

    def logits(self) -> NDArray[np.float32]:
        vocabulary = self._backend.config.vocab_size
        pointer, _ = self._memory.allocations["batch.logits"]
        return self._backend.read_floats(pointer, self.sequences * vocabulary).reshape(self.sequences, vocabulary)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        with ExitStack() as releases:  # in reverse order, even after a failure
            releases.callback(self._memory.close)
            if self._tokens is not None:
                releases.callback(self._tokens.close)
            for block in self._inputs:
                releases.callback(block.close)
            for step in self._captured.values():
                releases.callback(self._driver.destroy_graph, step.executable)
            self._driver.synchronize(self._stream)
