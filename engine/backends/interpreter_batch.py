"""A batch on the tile interpreter: `BatchSteps` in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.backends.batch_steps import OUTPUT_MODES, BatchSteps
from engine.graph.integers import InputValues, check_values
from tilec.step.graph import Buffer, Kind
from tilec.step.step import OutputMode

if TYPE_CHECKING:
    from engine.backends.interpreter import InterpreterBackend, PlannedStep


class InterpreterBatch(BatchSteps):
    """Caches, settings, inputs and outputs of several sequences, as arrays shared by all steps."""

    def __init__(self, backend: InterpreterBackend, sequences: int) -> None:
        self.sequences, self._backend = sequences, backend
        self._buffers: dict[str, NDArray[Any]] = {}
        self._bounds: dict[str, Buffer] = {}
        self._graphs = {
            (output_mode, short): backend.step.graph("batch", output_mode, tokens=sequences, short=short)
            for output_mode in OUTPUT_MODES
            for short in (False, True)
        }
        for graph in self._graphs.values():
            for buffer in graph.buffers.values():
                if buffer.kind in (Kind.CACHE, Kind.SETTING, Kind.OUTPUT, Kind.INPUT):
                    self._buffers.setdefault(buffer.name, backend.zeros(buffer))
                    self._bounds[buffer.name] = buffer
        self._caches = {buffer.name for graph in self._graphs.values() for buffer in graph.of_kind(Kind.CACHE)}
        self._inputs_known = InputValues()
        self._planned: dict[tuple[OutputMode, bool], PlannedStep] = {}

    def adopt(self, row: int, length: int) -> None:
        for name in self._caches:
            self._buffers[name][row, :length] = self._backend.cache(name.removeprefix("batch."))[:length]

    def set(self, values: Mapping[str, NDArray[Any]]) -> None:
        for name, value in values.items():
            check_values(self._bounds[name], value)
            self._buffers[name][...] = value

    def send(self, inputs: Mapping[str, NDArray[np.int32]]) -> None:
        self._inputs_known.sent(inputs)
        self.set(inputs)

    def run(self, output_mode: OutputMode, short: bool) -> None:
        if (output_mode, short) not in self._planned:
            self._planned[output_mode, short] = self._backend.planned(self._graphs[output_mode, short], self._buffers)
        planned = self._planned[output_mode, short]
        self._inputs_known.enqueue(planned.replay)
        self._backend.run_step(planned)

    def fetch(self, number: int) -> None:
        pass

    def fetched(self, number: int) -> NDArray[np.int32]:
        return self._buffers["batch.token"]  # steps run synchronously

    def logits(self) -> NDArray[np.float32]:
        return self._buffers["batch.logits"].astype(np.float32)

    def close(self) -> None:
        self._planned.clear()
        self._buffers.clear()
