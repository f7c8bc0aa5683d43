"""`cuda.bindings.driver` without a GPU, below `CudaDriver`: device memory is host memory, launches do nothing.

Handles are never used twice, so a handle that is ended again, or that was never given, is an error of the test.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

ATTRIBUTES = {
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": 9, "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": 0,
    "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": 132, "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
    "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE": 1 << 20,
}  # fmt: skip
CREATE = ("cuModuleLoadData", "cuStreamCreate", "cuEventCreate", "cuStreamEndCapture", "cuGraphInstantiate")
DESTROY = ("cuModuleUnload", "cuStreamDestroy", "cuEventDestroy", "cuGraphDestroy", "cuGraphExecDestroy")


def constant_call(value: Callable[[], Any]) -> Callable[..., Any]:
    """A function of any arguments, which are ignored."""

    def call(*_: Any) -> Any:
        return value()

    return call


class Names:
    """An enumeration, whose members are their names."""

    CUDA_SUCCESS = 0

    def __getattr__(self, name: str) -> str:
        return name


class FakeApi:
    """`others` is the memory that other processes hold, which `others_take` changes at each question; calls whose names are in
    `fail` fail."""

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.handles: dict[int, str] = {}
        self.limit, self.others = 1 << 33, 0
        self.others_take: Callable[[], int] = lambda: 0
        self.fail: set[str] = set()
        self._last = 0

    def __getattr__(self, name: str) -> Any:
        if name in ("CUlaunchAttribute", "CUlaunchConfig"):
            return lambda: SimpleNamespace(value=SimpleNamespace())
        if name.startswith("CU"):
            return Names()
        if name.startswith("cuuint"):
            return int
        if name in CREATE:
            return constant_call(lambda: self._created(name))
        if name in DESTROY:
            return self._destroyed
        if name.startswith("cu"):
            return constant_call(lambda: (0,))
        raise AttributeError(name)

    def _created(self, name: str) -> tuple[int, ...]:
        if name in self.fail:
            return 2, 0
        self._last += 1
        self.handles[self._last] = name
        return 0, self._last

    def _destroyed(self, handle: int) -> tuple[int]:
        del self.handles[handle]
        return (0,)

    def cuGetErrorName(self, code: int) -> tuple[int, bytes]:
        return 0, b"CUDA_ERROR_OUT_OF_MEMORY"

    def cuGetErrorString(self, code: int) -> tuple[int, bytes]:
        return 0, b"out of memory"

    def cuCtxGetDevice(self) -> tuple[int, int]:
        return 0, 0

    def cuCtxGetCurrent(self) -> tuple[int, int]:
        return 0, 1

    def cuDeviceGetCount(self) -> tuple[int, int]:
        return 0, 1

    def cuDeviceGetName(self, length: int, ordinal: int) -> tuple[int, bytes]:
        return 0, b"fake device\0"

    def cuDeviceGetAttribute(self, attribute: str, ordinal: int) -> tuple[int, int]:
        return 0, ATTRIBUTES[attribute]

    def cuModuleGetFunction(self, module: int, name: bytes) -> tuple[int, Any]:
        return 0, (module, name)

    def cuTensorMapEncodeTiled(self, *_: Any) -> tuple[int, Any]:
        return 0, SimpleNamespace(opaque=[0] * 16)

    def cuMemGetInfo(self) -> tuple[int, int, int]:
        self.others += self.others_take()
        return 0, self.limit - self.others - sum(block.size for block in self.memory.values()), self.limit

    def cuMemAllocAsync(self, size: int, stream: int) -> tuple[int, int]:
        if "cuMemAllocAsync" in self.fail:
            return 2, 0
        block = np.zeros(size + 256, np.uint8)
        pointer = (block.ctypes.data + 255) // 256 * 256
        self.memory[pointer] = block
        return 0, pointer

    def cuMemFreeAsync(self, pointer: int, stream: int) -> tuple[int]:
        del self.memory[pointer]
        return (0,)

    def cuMemAllocHost(self, size: int) -> tuple[int, int]:
        return self.cuMemAllocAsync(size, 0)

    def cuMemFreeHost(self, pointer: int) -> tuple[int]:
        return self.cuMemFreeAsync(pointer, 0)

    def cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: int) -> tuple[int]:
        ctypes.memmove(target, source, size)
        return (0,)

    def cuMemcpyDtoHAsync(self, target: int, source: int, size: int, stream: int) -> tuple[int]:
        ctypes.memmove(target, source, size)
        return (0,)

    cuMemcpyDtoDAsync = cuMemcpyHtoDAsync

    def cuMemsetD8Async(self, pointer: int, byte: int, size: int, stream: int) -> tuple[int]:
        ctypes.memset(pointer, byte, size)
        return (0,)
