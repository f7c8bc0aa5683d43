"""Device memory of a model: allocations by buffer name, and a block of inputs that one copy transfers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import DeviceError
from engine.graph.integers import check_values
from engine.graph.plan import ALIGNMENT
from tilec.runtime import Driver, DriverError
from tilec.step.graph import Buffer

RESERVE_BYTES: Final = 256 << 20
"""Device memory left free for the driver, modules and graphs."""


class DeviceMemory:
    """Allocations by buffer name. Everything is freed by `close`."""

    def __init__(self, driver: Driver, stream: int) -> None:
        self.driver, self.stream = driver, stream
        self.allocations: dict[str, tuple[int, int]] = {}
        """Pointer and size in bytes of each buffer."""
        self._owned: list[int] = []

    def allocate(self, size: int) -> int:
        """Allocate device memory; DeviceError if there is too little."""
        try:
            pointer = self.driver.allocate(size, self.stream)
        except DriverError as error:
            raise DeviceError(f"the device cannot give {size} bytes ({error.name})", fix="shorten --max-seq-len") from None
        self._owned.append(pointer)
        return pointer

    def fits(self, size: int) -> bool:
        """Whether `size` bytes and `RESERVE_BYTES` are free."""
        return size + RESERVE_BYTES <= self.driver.memory()[0]

    def require(self, size: int, free_before: int | None = None) -> None:
        """DeviceError unless `size` bytes and `RESERVE_BYTES` are free. Called before anything is loaded, or with the bytes
        that were free before a part of these was allocated."""
        free, total = self.driver.memory()
        free = free if free_before is None else free_before
        if size + RESERVE_BYTES > free:
            needed_gb, free_gb = (size + RESERVE_BYTES) / 1e9, free / 1e9
            what = f"the model needs {needed_gb:.1f} GB of device memory and {free_gb:.1f} of {total / 1e9:.1f} GB are free"
            raise DeviceError(what, fix="shorten --max-seq-len, or take a smaller model")

    def add(self, name: str, size: int) -> None:
        """Allocate a buffer of `size` bytes; its contents are undefined."""
        self.allocations[name] = (self.allocate(size), size)

    def add_zeroed(self, buffer: Buffer) -> None:
        """Allocate and zero a cache. Attention multiplies unfilled slots by zero, so they must contain finite numbers."""
        self.add(buffer.name, buffer.bytes)
        self.driver.fill(self.allocations[buffer.name][0], 0, buffer.bytes, self.stream)

    def add_array(self, name: str, array: NDArray[Any]) -> None:
        """Allocate a buffer and copy `array` into it."""
        contiguous = np.ascontiguousarray(array)
        self.add(name, contiguous.nbytes)
        self.driver.copy_to_device(self.allocations[name][0], contiguous.ctypes.data, contiguous.nbytes, self.stream)
        self.driver.synchronize(self.stream)

    def close(self) -> None:
        """Free all allocations; idempotent."""
        while self._owned:
            self.driver.free(self._owned.pop(), self.stream)
        self.allocations.clear()


class InputBlock:
    """The inputs of a step, contiguous on the host (page-locked) and on the device, so that one copy transfers all."""

    def __init__(self, memory: DeviceMemory, buffers: Iterable[Buffer]) -> None:
        self.driver, self.stream = memory.driver, memory.stream
        offsets: dict[str, tuple[int, int]] = {}
        self.size = 0
        buffer_list = list(buffers)
        for buffer in buffer_list:
            offsets[buffer.name] = (self.size, buffer.bytes)
            self.size += -(-buffer.bytes // ALIGNMENT) * ALIGNMENT
        self._device = memory.allocate(self.size)
        self.allocations = {name: (self._device + offset, size) for name, (offset, size) in offsets.items()}
        """Pointer and size in bytes of each input on the device."""
        self._host = self.driver.allocate_host(self.size)
        self._copied, self._sent = self.driver.create_event(), False
        ctypes.memset(self._host, 0, self.size)
        self._arrays: dict[str, NDArray[Any]] = {}
        self._buffers = {buffer.name: buffer for buffer in buffer_list}
        for buffer in buffer_list:
            raw = (ctypes.c_uint8 * buffer.bytes).from_address(self._host + offsets[buffer.name][0])
            self._arrays[buffer.name] = np.ctypeslib.as_array(raw).view(np.float32 if buffer.dtype == "f32" else np.int32)

    def send(self, **inputs: NDArray[Any] | Sequence[float] | float) -> None:
        """Write inputs on the host, each from its first element, and enqueue the copy of the whole block. GraphError, and
        nothing is written, if a value is out of its buffer's bounds."""
        self.send_to(self._buffers, inputs)

    def send_to(self, buffers: Mapping[str, Buffer], inputs: Mapping[str, NDArray[Any] | Sequence[float] | float]) -> None:
        """`send` for a step whose buffers have other bounds, such as a shorter chunk."""
        for name, values in inputs.items():
            check_values(buffers[name], values)
        if self._sent:
            self.driver.wait_event(self._copied)  # the previous copy may still read the block
        for name, values in inputs.items():
            array = self._arrays[name]
            array[: np.size(values)] = np.ravel(values)
        self.driver.copy_to_device(self._device, self._host, self.size, self.stream)
        self.driver.record_event(self._copied, self.stream)
        self._sent = True

    def close(self) -> None:
        """Free the host memory; idempotent. No copy may be in flight."""
        if self._host:
            self._arrays.clear()
            self.driver.destroy_event(self._copied)
            self.driver.free_host(self._host)
            self._host = 0
