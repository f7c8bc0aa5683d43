"""A driver without a GPU: device memory is host memory, launches are recorded with their argument bytes."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilec.runtime import DriverError
from tilec.runtime.driver import COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR, MULTIPROCESSORS, SHARED_MEMORY_OPTIN
from tilec.runtime.tensor_maps import TensorMapRequest


@dataclass
class Recorded:
    """One launch; `parameters` is the address of its pointer array."""

    function: Any
    grid: tuple[int, int, int]
    block: int
    shared: int
    stream: int
    parameters: int
    overlap: bool = False


@dataclass
class FakeDriver:
    """`tilec.runtime.Driver` for tests. `fail` makes the named call fail with the given driver error name."""

    capability: tuple[int, int] = (9, 0)
    fail: dict[str, str] = field(default_factory=dict)
    launches: list[Recorded] = field(default_factory=list)
    dynamic_shared: dict[Any, int] = field(default_factory=dict)
    preferred_shared: dict[Any, int] = field(default_factory=dict)
    buffers: dict[int, Any] = field(default_factory=dict)
    capturing: list[Recorded] | None = None
    limit: int = 1 << 33
    freed: list[tuple[int, int]] = field(default_factory=list)
    unreturned: int = 0  # bytes freed in a stream's order, which the device has back once the stream is synchronised
    images: list[bytes] = field(default_factory=list)
    devices: int = 1
    multiprocessors: int = 132
    map_requests: list[TensorMapRequest] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    elsewhere: dict[int, int | None] = field(default_factory=dict)  # pointers on other devices

    def _maybe_fail(self, call: str) -> None:
        if call in self.fail:
            raise DriverError(call, self.fail[call])

    def open_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return self.devices

    def pointer_device(self, pointer: int) -> int | None:
        return self.elsewhere.get(pointer, 0)

    def context(self) -> int:
        return 1

    def use_context(self, context: int) -> None:
        assert context == 1

    def device_name(self, ordinal: int) -> str:
        return "fake device"

    def device_attribute(self, ordinal: int, attribute: str) -> int:
        return {
            COMPUTE_CAPABILITY_MAJOR: self.capability[0],
            COMPUTE_CAPABILITY_MINOR: self.capability[1],
            MULTIPROCESSORS: self.multiprocessors,
            SHARED_MEMORY_OPTIN: 232448,
            "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE": 1 << 20,
        }[attribute]

    def load_module(self, image: bytes) -> Any:
        self._maybe_fail("cuModuleLoadData")
        self.images.append(image)
        return len(self.images)

    def unload_module(self, module: Any) -> None:
        self.images[module - 1] = b""

    def function(self, module: Any, name: str) -> Any:
        self._maybe_fail("cuModuleGetFunction")
        return (module, name)

    def set_dynamic_shared(self, function: Any, size: int) -> None:
        self.dynamic_shared[function] = size

    def prefer_shared(self, function: Any, percent: int) -> None:
        self.preferred_shared[function] = percent

    def launch(
        self, function: Any, grid: tuple[int, int, int], block: int, shared: int, stream: int, parameters: int, overlap: bool
    ) -> None:
        self._maybe_fail("cuLaunchKernel")
        record = Recorded(function, grid, block, shared, stream, parameters, overlap)
        (self.launches if self.capturing is None else self.capturing).append(record)

    def encode_tensor_map(self, request: TensorMapRequest) -> bytes:
        self._maybe_fail("cuTensorMapEncodeTiled")
        self.map_requests.append(request)
        rest = repr(replace(request, pointer=0)).encode()
        return struct.pack("<Q", request.pointer) + rest[-120:].rjust(120)

    def move_tensor_map(self, tensor_map: int, pointer: int) -> None:
        self._maybe_fail("cuTensorMapReplaceAddress")
        self.moved.append(pointer)
        ctypes.memmove(tensor_map, struct.pack("<Q", pointer), 8)

    def allocate(self, size: int, stream: int) -> int:
        self._maybe_fail("cuMemAllocAsync")
        buffer = np.zeros(size + 256, np.uint8)
        pointer = (buffer.ctypes.data + 255) // 256 * 256
        self.buffers[pointer] = buffer
        return pointer

    def free(self, pointer: int, stream: int) -> None:
        self.unreturned += self.buffers.pop(pointer).size
        self.freed.append((pointer, stream))

    def copy_to_device(self, pointer: int, host: int, size: int, stream: int) -> None:
        ctypes.memmove(pointer, host, size)

    def copy_to_host(self, host: int, pointer: int, size: int, stream: int) -> None:
        ctypes.memmove(host, pointer, size)

    def copy_on_device(self, pointer: int, source: int, size: int, stream: int) -> None:
        ctypes.memmove(pointer, source, size)

    def fill(self, pointer: int, byte: int, size: int, stream: int) -> None:
        ctypes.memset(pointer, byte, size)

    def synchronize(self, stream: int) -> None:
        self._maybe_fail("cuStreamSynchronize")
        self.unreturned = 0

    def memory(self) -> tuple[int, int]:
        used = sum(buffer.size for buffer in [*self.buffers.values()])  # a copy, because other threads may allocate
        return self.limit - self.unreturned - used, self.limit

    def allocate_host(self, size: int) -> int:
        return self.allocate(size, 0)

    def free_host(self, pointer: int) -> None:
        del self.buffers[pointer]
        self.freed.append((pointer, 0))

    def create_stream(self) -> int:
        return 7

    def destroy_stream(self, stream: int) -> None:
        self._maybe_fail("cuStreamDestroy")

    def begin_capture(self, stream: int) -> None:
        self._maybe_fail("cuStreamBeginCapture")
        self.capturing = []

    def end_capture(self, stream: int) -> list[Recorded]:
        recorded, self.capturing = self.capturing, None
        assert recorded is not None
        return recorded

    def launch_graph(self, graph: list[Recorded], stream: int) -> None:
        self._maybe_fail("cuGraphLaunch")
        self.launches.extend(graph)

    def destroy_graph(self, graph: list[Recorded]) -> None:
        graph.clear()

    def create_event(self, *, timing: bool = False) -> list[int]:
        return []

    def record_event(self, event: list[int], stream: int) -> None:
        event.append(stream)

    def wait_event(self, event: list[int]) -> None:
        assert event, "an event that nothing recorded"

    def elapsed(self, begin: list[int], end: list[int]) -> float:
        raise NotImplementedError

    def destroy_event(self, event: list[int]) -> None:
        event.clear()


def argument_bytes(launch: Recorded, sizes: list[int]) -> list[bytes]:
    """The bytes that the driver would copy: those at each pointer of the parameter array."""
    pointers = (ctypes.c_void_p * len(sizes)).from_address(launch.parameters)
    return [ctypes.string_at(pointer, size) for pointer, size in zip(pointers, sizes, strict=True)]
