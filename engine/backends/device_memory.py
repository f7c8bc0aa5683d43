"""A model's memory on the device: allocations by buffer name, and inputs side by side so that one copy sets them all."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import DeviceError
from engine.graph.plan import ALIGNMENT
from tilec.runtime import Driver, DriverError
from tilec.step.graph import Buffer

RESERVE_BYTES: Final = 256 << 20
"""Device memory left for the driver, modules and graphs."""


class DeviceMemory:
    """Allocations by buffer name. Everything is freed by `close`."""

    def __init__(self, driver: Driver, stream: int) -> None:
        self.driver, self.stream = driver, stream
        self.places: dict[str, tuple[int, int]] = {}
        """Pointer and bytes of each buffer."""
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

    def add(self, name: str, size: int) -> None:
        """Allocate a buffer of so many bytes, filled later."""
        self.places[name] = (self.allocate(size), size)

    def add_zeroed(self, buffer: Buffer) -> None:
        """Allocate a cache. Attention multiplies slots that no token filled by zero, so they must hold finite numbers."""
        self.add(buffer.name, buffer.bytes)
        self.driver.fill(self.places[buffer.name][0], 0, buffer.bytes, self.stream)

    def add_array(self, name: str, array: NDArray[Any]) -> None:
        """Allocate and fill a table computed on the host."""
        held = np.ascontiguousarray(array)
        self.add(name, held.nbytes)
        self.driver.copy_to_device(self.places[name][0], held.ctypes.data, held.nbytes, self.stream)
        self.driver.synchronize(self.stream)

    def close(self) -> None:
        """Free everything; idempotent."""
        while self._owned:
            self.driver.free(self._owned.pop(), self.stream)
        self.places.clear()


class InputBlock:
    """The inputs of a step in one block of memory, on the host and on the device, so that one copy sets them all."""

    def __init__(self, memory: DeviceMemory, buffers: Iterable[Buffer]) -> None:
        self.driver, self.stream = memory.driver, memory.stream
        offsets: dict[str, tuple[int, int]] = {}
        self.size = 0
        made = list(buffers)
        for buffer in made:
            offsets[buffer.name] = (self.size, buffer.bytes)
            self.size += -(-buffer.bytes // ALIGNMENT) * ALIGNMENT
        self._device = memory.allocate(self.size)
        self.places = {name: (self._device + offset, size) for name, (offset, size) in offsets.items()}
        """Pointer and bytes of each input on the device."""
        self._host = self.driver.allocate_host(self.size)
        self._copied, self._sent = self.driver.create_event(), False
        ctypes.memset(self._host, 0, self.size)
        self._arrays: dict[str, NDArray[Any]] = {}
        for buffer in made:
            raw = (ctypes.c_uint8 * buffer.bytes).from_address(self._host + offsets[buffer.name][0])
            self._arrays[buffer.name] = np.ctypeslib.as_array(raw).view(np.float32 if buffer.dtype == "f32" else np.int32)

    def send(self, **inputs: NDArray[Any] | Sequence[float] | float) -> None:
        """Set inputs, each from its first element on, and enqueue the copy of all."""
        if self._sent:
            self.driver.wait_event(self._copied)  # the copy before may still read the block
        for name, values in inputs.items():
            array = self._arrays[name]
            array[: np.size(values)] = np.ravel(values)
        self.driver.copy_to_device(self._device, self._host, self.size, self.stream)
        self.driver.record_event(self._copied, self.stream)
        self._sent = True

    def close(self) -> None:
        """Release the host memory; idempotent. No copy may be under way."""
        if self._host:
            self._arrays.clear()
            self.driver.destroy_event(self._copied)
            self.driver.free_host(self._host)
            self._host = 0
