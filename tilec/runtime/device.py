"""A device: the architecture that a CUBIN must match, and a simple device array for callers without a tensor framework."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.ir.types import DTYPES, PACKED
from tilec.runtime import dlpack
from tilec.runtime.driver import (
    COMPUTE_CAPABILITY_MAJOR,
    COMPUTE_CAPABILITY_MINOR,
    MULTIPROCESSORS,
    SHARED_MEMORY_OPTIN,
    CudaDriver,
    Driver,
)
from tilec.runtime.errors import LaunchError
from tilec.runtime.tensors import TensorView, contiguous_strides
from tilec.target.chips import DEPENDENT_LAUNCH_SINCE, architecture_of, runs_on

EXTENSION_NAMES: Final = {dtype.numpy: name for name, dtype in DTYPES.items() if dtype.extension}
"""Dtypes of ml_dtypes, which are accepted with their own meaning; on the host, runtime arrays have `DType.storage` instead."""
_PACKED_NAMES: Final = frozenset(dtype.numpy for dtype in PACKED.values())


def _named(dtype: str) -> str:
    """What a launch takes of an element type."""
    if dtype in PACKED:
        return "`u8`, two elements in each and the last axis half as long"
    return f"`{dtype}`" if dtype in DTYPES else f"one of {', '.join(f'`{name}`' for name in DTYPES)}"


class Device:
    """The device of the current context. `architecture` is its own one: `sm_90a` for capability 9.0, `sm_89` for 8.9."""

    def __init__(self, driver: Driver | None = None) -> None:
        self.driver: Driver = CudaDriver() if driver is None else driver
        self.ordinal = self.driver.open_device()
        self.name = self.driver.device_name(self.ordinal)
        major = self.driver.device_attribute(self.ordinal, COMPUTE_CAPABILITY_MAJOR)
        minor = self.driver.device_attribute(self.ordinal, COMPUTE_CAPABILITY_MINOR)
        self.capability = major, minor
        self.architecture = architecture_of(self.capability)
        self.multiprocessors = self.driver.device_attribute(self.ordinal, MULTIPROCESSORS)
        self.shared_memory_bytes = self.driver.device_attribute(self.ordinal, SHARED_MEMORY_OPTIN)
        # Returns the device that memory belongs to; None if there is only one device, which needs no check.
        self.owner: Callable[[int], int | None] | None = self.driver.pointer_device if self.driver.device_count() > 1 else None

    def runs(self, arch: str) -> bool:
        """Whether it runs machine code for an architecture, such as `sm_100f`."""
        return runs_on(arch, self.capability)

    @property
    def overlaps_launches(self) -> bool:
        """Whether a kernel may start before the previous one has ended (programmatic dependent launch)."""
        return self.capability >= DEPENDENT_LAUNCH_SINCE

    def empty(self, shape: tuple[int, ...], dtype: str, *, stream: int = 0) -> DeviceArray:
        """An uninitialised array, allocated in stream order; `dtype` is a name such as `bf16`."""
        if dtype not in DTYPES:
            raise LaunchError("E0904", "there is no such element type", given=f"`{dtype}`", required=_named(dtype))
        return DeviceArray(self, shape, dtype, stream)

    def from_numpy(self, array: NDArray[Any], dtype: str | None = None, *, stream: int = 0) -> DeviceArray:
        """A copy of a host array; `dtype` names the element type if NumPy cannot (`bf16` as uint16)."""
        inferred = EXTENSION_NAMES.get(array.dtype.name)
        if inferred is None:
            inferred = next((name for name, one in DTYPES.items() if one.numpy == array.dtype.name), None)
        given = f"`{array.dtype}`"
        if array.dtype.name in _PACKED_NAMES:
            required = "bytes of two elements each, as u8: `c[..., 0::2] | c[..., 1::2] << 4` with `c = a.view(np.uint8) & 15`"
            raise LaunchError("E0904", "the host array keeps each element of 4 bits in a byte of its own", given=given,
                              required=required)  # fmt: skip
        element_type = dtype or inferred
        if element_type not in DTYPES or DTYPES[element_type].bytes != array.dtype.itemsize:
            required = _named(dtype) if dtype else "an array of a dtype of kernels, or its name"
            raise LaunchError("E0904", "the host array does not hold this element type", given=given, required=required)
        host = np.ascontiguousarray(array)
        result = DeviceArray(self, array.shape, element_type, stream)
        self.driver.copy_to_device(result.pointer, host.ctypes.data, host.nbytes, stream)
        return result


class DeviceArray:
    """Row-major contiguous device memory, freed in stream order when the array is collected. Other libraries can use it in
    place through DLPack (`torch.from_dlpack`)."""

    def __init__(self, device: Device, shape: tuple[int, ...], dtype: str, stream: int = 0) -> None:
        self.pointer = 0
        self._consumers: set[int] = set()
        self.device, self.shape, self.dtype, self.stream = device, shape, dtype, stream
        count = 1
        for extent in shape:
            count *= extent
        self.nbytes = count * DTYPES[dtype].bytes
        if self.nbytes:
            self.pointer = device.driver.allocate(self.nbytes, stream)

    def __del__(self) -> None:
        if getattr(self, "pointer", 0):
            # At interpreter exit the driver may be shut down already, which frees its memory.
            for stream in self._consumers:
                with contextlib.suppress(Exception):
                    self.device.driver.synchronize(stream)
            with contextlib.suppress(Exception):
                self.device.driver.free(self.pointer, self.stream)

    def tensor_view(self) -> TensorView:
        """The array as a `TensorView`."""
        return TensorView(self.pointer, self.dtype, self.shape, contiguous_strides(self.shape))

    def __dlpack_device__(self) -> tuple[int, int]:
        """Device type CUDA, and the device's ordinal."""
        return dlpack.CUDA, self.device.ordinal

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> Any:  # fmt: skip
        """The array as a DLPack capsule for a consumer on `stream` (a handle; None and 1 are the default stream, -1 requests no
        synchronization). Waits until work enqueued on the array's stream is done; the memory is freed only after the consumer's
        stream is. BufferError if another device or a copy is requested."""
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("a `DeviceArray` is exported without a copy, on its own device")
        consumer = 1 if stream is None else int(stream)
        if consumer != -1 and consumer != (self.stream or 1):
            self.device.driver.synchronize(self.stream)
            self._consumers.add(consumer)
        return dlpack.export(
            self.tensor_view(), self, self.device.ordinal, versioned=max_version is not None and max_version[0] >= 1
        )

    def fill(self, byte: int) -> None:
        """Set every byte, in stream order."""
        self.device.driver.fill(self.pointer, byte, self.nbytes, self.stream)

    def to_numpy(self) -> NDArray[Any]:
        """A copy on the host, in the dtype of `DType.storage`; waits for the array's stream."""
        host = np.empty(self.shape, DTYPES[self.dtype].storage)
        if self.nbytes:
            self.device.driver.copy_to_host(host.ctypes.data, self.pointer, self.nbytes, self.stream)
            self.device.driver.synchronize(self.stream)
        return host
