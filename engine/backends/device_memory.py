"""A model's memory on the device: weights streamed in, caches zeroed, inputs side by side so that one copy sets them all."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.errors import DeviceError
from engine.graph.plan import ALIGNMENT
from engine.graph.step import Buffer, Kind
from tilec.runtime import Driver, DriverError

STAGING_BYTES: Final = 32 << 20
"""Bytes of each of two page-locked buffers that weights pass through: the host fills one while the device reads the other."""

RESERVE_BYTES: Final = 256 << 20
"""Device memory left for the driver, modules and graphs."""

Progress = Callable[[int, int], None]
"""Called with the bytes loaded so far and in all."""


class WeightSource(Protocol):
    """`engine.weights.Weights`, as far as the device needs it."""

    @property
    def destinations(self) -> Iterable[Any]: ...
    @property
    def bytes(self) -> int: ...
    def chunks(self, name: str, limit_bytes: int) -> Iterable[tuple[int, memoryview]]: ...


class DeviceMemory:
    """Allocations by buffer name. Everything is freed by `close`."""

    def __init__(self, driver: Driver, stream: int) -> None:
        self.driver, self.stream = driver, stream
        self.pointers: dict[str, int] = {}
        self._owned: list[int] = []

    def allocate(self, size: int) -> int:
        """A block of its own; DeviceError where the device has too little memory."""
        try:
            pointer = self.driver.allocate(size, self.stream)
        except DriverError as error:
            raise DeviceError(f"the device cannot give {size} bytes ({error.name})", fix="shorten --max-seq-len") from None
        self._owned.append(pointer)
        return pointer

    def require(self, size: int) -> None:
        """DeviceError unless `size` bytes and a reserve are free, before anything is loaded."""
        free, total = self.driver.memory()
        if size + RESERVE_BYTES > free:
            needed, have = (size + RESERVE_BYTES) / 1e9, free / 1e9
            what = f"the model needs {needed:.1f} GB of device memory and {have:.1f} of {total / 1e9:.1f} GB are free"
            raise DeviceError(what, fix="shorten --max-seq-len, or take a smaller model")

    def add_weights(self, weights: WeightSource, progress: Progress | None) -> None:
        """Allocate and fill every destination."""
        staging = [self.driver.allocate_host(STAGING_BYTES) for _ in range(2)]
        done, turn = 0, 0
        try:
            for destination in weights.destinations:
                pointer = self.pointers[destination.name] = self.allocate(destination.bytes)
                for offset, chunk in weights.chunks(destination.name, STAGING_BYTES):
                    if turn >= 2:
                        self.driver.synchronize(self.stream)
                    place = staging[turn % 2]
                    size = chunk.nbytes
                    ctypes.memmove(place, np.frombuffer(chunk, np.uint8).ctypes.data, size)
                    self.driver.copy_to_device(pointer + offset, place, size, self.stream)
                    turn += 1
                    done += size
                    if progress is not None:
                        progress(done, weights.bytes)
            self.driver.synchronize(self.stream)
        finally:
            for place in staging:
                self.driver.free_host(place)

    def add_zeroed(self, buffer: Buffer) -> None:
        """Allocate a cache. Attention multiplies slots that no token filled by zero, so they must hold finite numbers."""
        pointer = self.pointers[buffer.name] = self.allocate(buffer.bytes)
        self.driver.fill(pointer, 0, buffer.bytes, self.stream)

    def add_array(self, name: str, array: NDArray[Any]) -> None:
        """Allocate and fill a table computed on the host."""
        held = np.ascontiguousarray(array)
        pointer = self.pointers[name] = self.allocate(held.nbytes)
        self.driver.copy_to_device(pointer, held.ctypes.data, held.nbytes, self.stream)
        self.driver.synchronize(self.stream)

    def close(self) -> None:
        """Free everything; idempotent."""
        while self._owned:
            self.driver.free(self._owned.pop(), self.stream)
        self.pointers.clear()


class InputBlock:
    """The inputs of a step in one block of memory, on the host and on the device, so that one copy sets them all."""

    def __init__(self, memory: DeviceMemory, buffers: Iterable[Buffer]) -> None:
        self.driver, self.stream = memory.driver, memory.stream
        self.offsets: dict[str, int] = {}
        size = 0
        for buffer in buffers:
            assert buffer.kind is Kind.INPUT and buffer.dtype == "i32"
            self.offsets[buffer.name] = size
            size += -(-buffer.bytes // ALIGNMENT) * ALIGNMENT
        self.size = size
        self.device = memory.allocate(size)
        self._host = self.driver.allocate_host(size)
        raw = (ctypes.c_int32 * (size // 4)).from_address(self._host)
        self.array: NDArray[Any] = np.ctypeslib.as_array(raw)
        self.array[:] = 0

    def pointer(self, name: str) -> int:
        """Where an input lies on the device."""
        return self.device + self.offsets[name]

    def set(self, name: str, values: NDArray[np.int32] | list[int] | int) -> None:
        """Write an input on the host; `send` takes it over. The copy before must have ended."""
        begin = self.offsets[name] // 4
        count = 1 if isinstance(values, int) else len(values)
        self.array[begin : begin + count] = values

    def send(self) -> None:
        """Enqueue the copy of all inputs."""
        self.driver.copy_to_device(self.device, self._host, self.size, self.stream)

    def close(self) -> None:
        """Release the host memory."""
        if self._host:
            self.driver.free_host(self._host)
            self._host = 0
