"""A batch on the tile interpreter: `BatchSteps` in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.backends.batch_steps import HEADS, BatchSteps
from engine.graph.integers import InputValues, check_values
from tilec.step.graph import Buffer, Kind
from tilec.step.step import Head

if TYPE_CHECKING:
    from engine.backends.interpreter import InterpreterBackend, PlannedStep


class InterpreterBatch(BatchSteps):
    """Caches, settings, inputs and outputs of several sequences, as arrays shared by all steps."""

    def __init__(self, backend: InterpreterBackend, sequences: int) -> None:
        self.sequences, self._backend = sequences, backend
        self._held: dict[str, NDArray[Any]] = {}
        self._buffers: dict[str, Buffer] = {}
        self._graphs = {
            (head, short): backend.step.graph("batch", head, tokens=sequences, short=short)
            for head in HEADS
            for short in (False, True)
        }
        for graph in self._graphs.values():
            for buffer in graph.buffers.values():
                if buffer.kind in (Kind.CACHE, Kind.SETTING, Kind.OUTPUT, Kind.INPUT):
                    self._held.setdefault(buffer.name, backend.zeros(buffer))
                    self._buffers[buffer.name] = buffer
        self._caches = {buffer.name for graph in self._graphs.values() for buffer in graph.of_kind(Kind.CACHE)}
        self._inputs_known = InputValues()
        self._planned: dict[tuple[Head, bool], PlannedStep] = {}

    def adopt(self, place: int, length: int) -> None:
        for name in self._caches:
            self._held[name][place, :length] = self._backend.cache(name.removeprefix("batch."))[:length]

    def set(self, values: Mapping[str, NDArray[Any]]) -> None:
        for name, value in values.items():
            check_values(self._buffers[name], value)
            self._held[name][...] = value

    def send(self, inputs: Mapping[str, NDArray[np.int32]]) -> None:
        self._inputs_known.sent(inputs)
        self.set(inputs)

    def run(self, head: Head, short: bool) -> None:
        if (head, short) not in self._planned:
            self._planned[head, short] = self._backend.planned(self._graphs[head, short], self._held)
        planned = self._planned[head, short]
        self._inputs_known.enqueue(planned.replay)
        self._backend.run_step(planned)

    def fetch(self, number: int) -> None:
        pass

    def fetched(self, number: int) -> NDArray[np.int32]:
        return self._held["batch.token"]  # steps run synchronously

    def logits(self) -> NDArray[np.float32]:
        return self._held["batch.logits"].astype(np.float32)

    def close(self) -> None:
        self._planned.clear()
        self._held.clear()
