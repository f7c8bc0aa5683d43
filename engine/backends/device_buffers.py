"""The buffers of decode steps on a GPU: caches, outputs, inputs and settings that one copy each transfers, tokens on their way
to the host, and the arena for activations."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.backends.decode_steps import StepBuffers, lasting_buffers, token_state
from engine.backends.device_memory import DeviceMemory, InputBlock
from engine.backends.token_ring import TokenRing
from engine.graph.plan import plan_memory
from tilec.runtime import Driver
from tilec.step.graph import ITEM_BYTES, Buffer, Kind, StepGraph


class DeviceBuffers(StepBuffers):
    """Memory for the buffers of `graphs`, except for pools. `arena` is the pointer and the bytes of memory for activations;
    without it the buffers have one of their own. Inputs are sent all together, but those named in `apart` each by itself.
    DeviceError if there is too little memory."""

    def __init__(
        self, driver: Driver, stream: int, graphs: Sequence[StepGraph], token: str, arena: tuple[int, int] | None = None,
        apart: Collection[str] = (),
    ) -> None:  # fmt: skip
        self._driver, self._stream = driver, stream
        self._memory = memory = DeviceMemory(driver, stream)
        self._blocks: dict[Kind | str, InputBlock] = {}
        self._apart = frozenset(apart)
        self._tokens: TokenRing | None = None
        self._also: dict[str, TokenRing] = {}
        self._staged: dict[tuple[str, int], int] = {}
        """Page-locked memory of the host for each part that was staged, of its size."""
        self._outputs = {buffer.name: buffer for buffer in lasting_buffers(graphs, Kind.OUTPUT)}
        self._item_bytes = {buffer.name: ITEM_BYTES[buffer.dtype] for buffer in lasting_buffers(graphs, Kind.CACHE, Kind.INPUT)}
        try:
            size = 0 if arena else max(plan_memory(graph).size for graph in graphs)
            state = token_state(graphs)  # too large to be sent with the other inputs
            if not arena:
                memory.require(cache_bytes(graphs) + sum(buffer.bytes for buffer in state) + size)
            for buffer in (*lasting_buffers(graphs, Kind.CACHE), *state):
                memory.add_zeroed(buffer)
            for buffer in self._outputs.values():
                memory.add(buffer.name, buffer.bytes)
            self.arena = arena or (memory.allocate(size), size)
            for kind in (Kind.INPUT, Kind.SETTING):
                sent = [one for one in lasting_buffers(graphs, kind) if one not in state and one.name not in self._apart]
                self._blocks[kind] = InputBlock(memory, sent)
            for buffer in lasting_buffers(graphs, Kind.INPUT):
                if buffer.name in self._apart:
                    self._blocks[buffer.name] = InputBlock(memory, [buffer])
            self._tokens = TokenRing(memory, token, prod(self._outputs[token].shape))
        except BaseException:
            self.close()
            raise

    @property
    def allocations(self) -> dict[str, tuple[int, int]]:
        """Pointer and bytes of every buffer."""
        allocations = dict(self._memory.allocations)
        for block in self._blocks.values():
            allocations |= block.allocations
        return allocations

    def send(self, kind: Kind, values: Mapping[str, Any]) -> None:
        together = {name: value for name, value in values.items() if name not in self._apart}
        if together:
            self._blocks[kind].send(**together)
        for name in values.keys() & self._apart:
            self._blocks[name].send(**{name: values[name]})

    def send_to(self, buffers: Mapping[str, Buffer], values: Mapping[str, Any]) -> None:
        """Set the inputs of a step whose buffers have other bounds, such as a shorter chunk's."""
        self._blocks[Kind.INPUT].send_to(buffers, values)

    def copy(self, target: str, slot: int, source: StepBuffers, name: str, source_slot: int, elements: int) -> None:
        assert isinstance(source, DeviceBuffers)
        item_bytes = self._item_bytes[target]
        pointer, source_pointer = self._memory.allocations[target][0], source._memory.allocations[name][0]
        self._driver.copy_on_device(
            pointer + slot * item_bytes, source_pointer + source_slot * item_bytes, elements * item_bytes, self._stream
        )

    def clear(self, name: str, first: int, elements: int) -> None:
        item_bytes = self._item_bytes[name]
        pointer = self._memory.allocations[name][0] + first * item_bytes
        self._driver.fill(pointer, 0, elements * item_bytes, self._stream)

    def write(self, name: str, first: int, values: NDArray[Any]) -> None:
        pointer, contiguous = self._memory.allocations[name][0], np.ascontiguousarray(values)
        self._driver.copy_to_device(
            pointer + first * self._item_bytes[name], contiguous.ctypes.data, contiguous.nbytes, self._stream
        )
        self._driver.synchronize(self._stream)

    def stage(self, name: str, first: int, values: NDArray[Any]) -> None:
        pointer, contiguous = self.allocations[name][0], np.ascontiguousarray(values)
        staging = self._staged.get((name, first), 0)
        if not staging:
            staging = self._staged[name, first] = self._driver.allocate_host(contiguous.nbytes)
        ctypes.memmove(staging, contiguous.ctypes.data, contiguous.nbytes)
        self._driver.copy_to_device(pointer + first * self._item_bytes[name], staging, contiguous.nbytes, self._stream)

    def fetch(self, number: int, also: Sequence[str] = ()) -> None:
        self._ring.fetch(number)
        for name in also:
            if name not in self._also:
                self._also[name] = TokenRing(self._memory, name, prod(self._outputs[name].shape))
            self._also[name].fetch(number)

    def fetched_output(self, number: int, name: str) -> NDArray[Any]:
        buffer = self._outputs[name]
        words = self._also[name].fetched(number).reshape(buffer.shape)
        return words.view(np.float32) if buffer.dtype == "f32" else words

    def fetched(self, number: int) -> NDArray[np.int32]:
        return self._ring.fetched(number)

    def latest(self) -> NDArray[np.int32]:
        return self._ring.latest()

    def floats(self, name: str, rows: int | None = None) -> NDArray[np.float32]:
        first, *others = self._outputs[name].shape
        shape = (rows or first, *others)
        return self.part(name, 0, prod(shape)).reshape(shape)

    def part(self, name: str, first: int, count: int) -> NDArray[np.float32]:
        buffer, (pointer, _) = self._outputs[name], self._memory.allocations[name]
        raw = np.empty(max(0, min(count, prod(buffer.shape) - first)), np.uint16)
        self._driver.copy_to_host(raw.ctypes.data, pointer + first * raw.itemsize, raw.nbytes, self._stream)
        self._driver.synchronize(self._stream)
        if buffer.dtype == "f16":
            return raw.view(np.float16).astype(np.float32)
        return (raw.astype(np.uint32) << 16).view(np.float32)

    def close(self) -> None:
        with ExitStack() as releases:  # in reverse order, even after a failure
            releases.callback(self._memory.close)
            for ring in (self._tokens, *self._also.values()):
                if ring is not None:
                    releases.callback(ring.close)
            for block in self._blocks.values():
                releases.callback(block.close)
            while self._staged:
                releases.callback(self._driver.free_host, self._staged.popitem()[1])

    @property
    def _ring(self) -> TokenRing:
        assert self._tokens is not None  # set in `__init__`
        return self._tokens


def cache_bytes(graphs: Sequence[StepGraph]) -> int:
    """Bytes of the caches of some steps."""
    return sum(buffer.bytes for buffer in lasting_buffers(graphs, Kind.CACHE))
