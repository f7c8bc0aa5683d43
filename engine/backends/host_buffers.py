"""The buffers of decode steps as NumPy arrays, which all of the steps share. Steps run synchronously."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.backends.decode_steps import LASTING, StepBuffers, lasting_buffers
from engine.graph.integers import check_values
from tilec.step.graph import ITEM_BYTES, Buffer, Kind, StepGraph
from tilec.target.dtypes import DTYPES, numpy_dtype

NUMPY_TYPES: Final[Mapping[str, np.dtype[Any]]] = {name: numpy_dtype(DTYPES[name]) for name in ITEM_BYTES}
"""NumPy dtype of each dtype of a buffer."""


class HostBuffers(StepBuffers):
    """Arrays for the buffers of `graphs`. Each step writes the inputs of the next one, of either variant."""

    def __init__(self, graphs: Sequence[StepGraph], token: str) -> None:
        self._bounds = {buffer.name: buffer for buffer in lasting_buffers(graphs, *LASTING)}
        self._token = token
        self.arrays: dict[str, NDArray[Any]] = {name: zeros(buffer) for name, buffer in self._bounds.items()}
        """The array of each buffer, by name, in its shape."""

    def except_inputs(self) -> dict[str, NDArray[Any]]:
        """The arrays that a prefill shares with decode steps."""
        return {name: array for name, array in self.arrays.items() if self._bounds[name].kind is not Kind.INPUT}

    def send(self, kind: Kind, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            check_values(self._bounds[name], value)
            self.arrays[name][...] = value

    def copy(self, target: str, slot: int, source: StepBuffers, name: str, source_slot: int, elements: int) -> None:
        assert isinstance(source, HostBuffers)
        taken = source.arrays[name].reshape(-1)[source_slot : source_slot + elements]
        self.arrays[target].reshape(-1)[slot : slot + elements] = taken

    def clear(self, name: str, first: int, elements: int) -> None:
        self.arrays[name].reshape(-1)[first : first + elements] = 0

    def write(self, name: str, first: int, values: NDArray[Any]) -> None:
        self.arrays[name].reshape(-1)[first : first + values.size] = values

    def stage(self, name: str, first: int, values: NDArray[Any]) -> None:
        self.write(name, first, values)

    def fetch(self, number: int, also: Sequence[str] = ()) -> None:
        """Nothing to do: the tokens are on the host."""

    def fetched_output(self, number: int, name: str) -> NDArray[Any]:
        return self.arrays[name]

    def fetched(self, number: int) -> NDArray[np.int32]:
        return self.arrays[self._token]

    def latest(self) -> NDArray[np.int32]:
        return self.arrays[self._token]

    def floats(self, name: str, rows: int | None = None) -> NDArray[np.float32]:
        return self.arrays[name][:rows].astype(np.float32)

    def part(self, name: str, first: int, count: int) -> NDArray[np.float32]:
        return self.arrays[name].reshape(-1)[first : first + count].astype(np.float32)

    def share(self, names: Iterable[str], other: HostBuffers) -> None:
        """Take these arrays of other steps for their own, such as a pool."""
        self.arrays |= {name: other.arrays[name] for name in names}

    def close(self) -> None:
        self.arrays.clear()


def zeros(buffer: Buffer) -> NDArray[Any]:
    """A zeroed array for a buffer."""
    return np.zeros(buffer.shape, NUMPY_TYPES[buffer.dtype])
