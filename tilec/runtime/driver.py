"""The CUDA driver as one small interface of handles and integers; failures are named errors.

Only this file uses `cuda.bindings`, so that a test can substitute another `Driver`. Every call's return code is checked; a
failure is a `DriverError` with the driver's own name for it.
"""

from __future__ import annotations

import importlib
import struct
from typing import Any, Final, NoReturn, Protocol

from tilec.ir.types import DTYPES
from tilec.runtime.errors import LaunchError
from tilec.runtime.tensor_maps import TensorMapRequest

COMPUTE_CAPABILITY_MAJOR: Final = "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR"
COMPUTE_CAPABILITY_MINOR: Final = "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR"
SHARED_MEMORY_OPTIN: Final = "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"
MULTIPROCESSORS: Final = "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT"
L2_BYTES: Final = "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE"
MAX_CONFIGS: Final = 1024
"""Maximum number of cached launch configurations."""
DYNAMIC_SHARED: Final = "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
PREFERRED_SHARED: Final = "CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT"


class DriverError(LaunchError):
    """A driver call failed; `name` is the driver's name of the error, such as `CUDA_ERROR_INVALID_VALUE`."""

    def __init__(self, call: str, name: str, description: str = "") -> None:
        self.call = call
        self.name = name
        super().__init__("E0915", f"`{call}` failed with {name}" + (f" ({description})" if description else ""))


class Driver(Protocol):
    """The driver interface that the launcher uses. Pointers, streams and sizes are plain integers; sizes are in bytes."""

    def open_device(self) -> int:
        """Ordinal of the current context's device; makes the primary context of device 0 current if there is none."""
        ...

    def device_count(self) -> int:
        """Number of devices visible to CUDA."""
        ...

    def pointer_device(self, pointer: int) -> int | None:
        """Ordinal of the device that owns the memory at an address. None for managed memory, which is accessible from every
        device, and for memory unknown to the driver."""
        ...

    def context(self) -> Any:
        """The context that is current on this thread."""
        ...

    def use_context(self, context: Any) -> None:
        """Make a context current on this thread; a new thread has none."""
        ...

    def device_name(self, ordinal: int) -> str: ...

    def device_attribute(self, ordinal: int, attribute: str) -> int:
        """Value of a `CU_DEVICE_ATTRIBUTE_...`."""
        ...

    def load_module(self, image: bytes) -> Any: ...

    def unload_module(self, module: Any) -> None: ...

    def function(self, module: Any, name: str) -> Any: ...

    def set_dynamic_shared(self, function: Any, size: int) -> None: ...

    def prefer_shared(self, function: Any, percent: int) -> None:
        """Set the preferred shared memory carve-out of a function, in percent of the maximum; a hint."""
        ...

    def launch(
        self, function: Any, grid: tuple[int, int, int], block: int, shared: int, stream: int, parameters: int, overlap: bool
    ) -> None:
        """Enqueue; `parameters` is the address of an array of pointers to the argument values. `overlap` sets programmatic
        stream serialization: the launch does not wait for the previous kernel on the stream; the kernel does."""
        ...

    def encode_tensor_map(self, request: TensorMapRequest) -> bytes:
        """Encode a tensor map to its 128 bytes; nothing is enqueued."""
        ...

    def move_tensor_map(self, tensor_map: int, pointer: int) -> None:
        """Replace the tensor's address in an encoded map, of which `tensor_map` is the host's address."""
        ...

    def allocate(self, size: int, stream: int) -> int: ...

    def free(self, pointer: int, stream: int) -> None: ...

    def copy_to_device(self, pointer: int, host: int, size: int, stream: int) -> None: ...

    def copy_to_host(self, host: int, pointer: int, size: int, stream: int) -> None: ...

    def copy_on_device(self, pointer: int, source: int, size: int, stream: int) -> None: ...

    def fill(self, pointer: int, byte: int, size: int, stream: int) -> None: ...

    def synchronize(self, stream: int) -> None: ...

    def memory(self) -> tuple[int, int]:
        """Free and total device memory in bytes."""
        ...

    def allocate_host(self, size: int) -> int:
        """Page-locked host memory, needed for asynchronous copies."""
        ...

    def free_host(self, pointer: int) -> None: ...

    def create_stream(self) -> int: ...

    def destroy_stream(self, stream: int) -> None: ...

    def begin_capture(self, stream: int) -> None:
        """Record what is enqueued on `stream` from now on instead of running it."""
        ...

    def end_capture(self, stream: int) -> Any:
        """The recorded work as an executable graph."""
        ...

    def launch_graph(self, graph: Any, stream: int) -> None: ...

    def destroy_graph(self, graph: Any) -> None: ...

    def create_event(self, *, timing: bool = False) -> Any:
        """An event; with `timing`, one that `elapsed` can read."""
        ...

    def record_event(self, event: Any, stream: int) -> None:
        """Record the event after the work enqueued on `stream` so far."""
        ...

    def wait_event(self, event: Any) -> None:
        """Block the host until the event has completed."""
        ...

    def elapsed(self, begin: Any, end: Any) -> float:
        """Milliseconds between two completed events created with `timing`."""
        ...

    def destroy_event(self, event: Any) -> None: ...


class CudaDriver:
    """`Driver` implemented with `cuda-bindings` (12 or 13)."""

    def __init__(self) -> None:
        try:
            self._api: Any = importlib.import_module("cuda.bindings.driver")
        except ImportError:
            raise LaunchError("E0915", "`cuda-bindings` is not installed", required="`pip install tilec`") from None
        try:
            (code,) = self._api.cuInit(0)
        except Exception as error:  # the bindings raise their own types if the driver library is absent
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise LaunchError("E0915", f"no NVIDIA driver on this machine ({reason})") from None
        self._success: Any = self._api.CUresult.CUDA_SUCCESS
        if code != self._success:
            self._fail("cuInit", code)
        self._launch: Any = self._api.cuLaunchKernel
        self._launch_ex: Any = self._api.cuLaunchKernelEx
        self._configs: dict[tuple[tuple[int, int, int], int, int, int], Any] = {}

    def _fail(self, call: str, code: Any) -> NoReturn:
        name_code, name = self._api.cuGetErrorName(code)
        text_code, text = self._api.cuGetErrorString(code)
        raise DriverError(
            call,
            name.decode() if name_code == self._success and name else f"CUresult {int(code)}",
            text.decode() if text_code == self._success and text else "",
        )

    def _call(self, name: str, *arguments: Any) -> Any:
        code, *results = getattr(self._api, name)(*arguments)
        if code != self._success:
            self._fail(name, code)
        return results[0] if results else None

    def open_device(self) -> int:
        """Ordinal of the current context's device; makes the primary context of device 0 current if there is none."""
        code, device = self._api.cuCtxGetDevice()
        if code != self._success:
            device = self._call("cuDeviceGet", 0)
            self._call("cuCtxSetCurrent", self._call("cuDevicePrimaryCtxRetain", device))
        return int(device)

    def device_count(self) -> int:
        """Number of devices visible to CUDA."""
        return int(self._call("cuDeviceGetCount"))

    def pointer_device(self, pointer: int) -> int | None:
        """Ordinal of the device that owns the memory at an address; None for managed or unknown memory."""
        attribute = self._api.CUpointer_attribute
        code, managed = self._api.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer)
        if code != self._success or managed:
            return None
        return int(self._call("cuPointerGetAttribute", attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer))

    def context(self) -> Any:
        """The context that is current on this thread."""
        return self._call("cuCtxGetCurrent")

    def use_context(self, context: Any) -> None:
        """Make a context current on this thread."""
        self._call("cuCtxSetCurrent", context)

    def device_name(self, ordinal: int) -> str:
        """Marketing name of the device."""
        name: bytes = self._call("cuDeviceGetName", 256, ordinal)
        return name.split(b"\0")[0].decode()

    def device_attribute(self, ordinal: int, attribute: str) -> int:
        """Value of a `CU_DEVICE_ATTRIBUTE_...`."""
        return int(self._call("cuDeviceGetAttribute", getattr(self._api.CUdevice_attribute, attribute), ordinal))

    def load_module(self, image: bytes) -> Any:
        """A module of the current context from CUBIN bytes."""
        return self._call("cuModuleLoadData", image)

    def unload_module(self, module: Any) -> None:
        """Unload a module; its functions are invalid afterwards."""
        self._call("cuModuleUnload", module)

    def function(self, module: Any, name: str) -> Any:
        """The kernel `name` of a module."""
        return self._call("cuModuleGetFunction", module, name.encode())

    def set_dynamic_shared(self, function: Any, size: int) -> None:
        """Allow launches with up to `size` bytes of dynamic shared memory."""
        self._call("cuFuncSetAttribute", function, getattr(self._api.CUfunction_attribute, DYNAMIC_SHARED), size)

    def prefer_shared(self, function: Any, percent: int) -> None:
        """See `Driver.prefer_shared`."""
        self._call("cuFuncSetAttribute", function, getattr(self._api.CUfunction_attribute, PREFERRED_SHARED), percent)

    def launch(
        self, function: Any, grid: tuple[int, int, int], block: int, shared: int, stream: int, parameters: int, overlap: bool
    ) -> None:
        """See `Driver.launch`."""
        if overlap:
            (code,) = self._launch_ex(self._overlapping(grid, block, shared, stream), function, parameters, 0)
            if code != self._success:
                self._fail("cuLaunchKernelEx", code)
            return
        (code,) = self._launch(function, grid[0], grid[1], grid[2], block, 1, 1, shared, stream, parameters, 0)
        if code != self._success:
            self._fail("cuLaunchKernel", code)

    def _overlapping(self, grid: tuple[int, int, int], block: int, shared: int, stream: int) -> Any:
        """The launch configuration for programmatic stream serialization; cached, because building it costs more than using
        it."""
        key = grid, block, shared, stream
        cached = self._configs.get(key)
        if cached is not None:
            return cached
        api = self._api
        attribute = api.CUlaunchAttribute()
        attribute.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config = api.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes = shared
        config.hStream = stream
        config.attrs = [attribute]
        config.numAttrs = 1
        if len(self._configs) >= MAX_CONFIGS:
            self._configs.clear()
        self._configs[key] = config
        return config

    def encode_tensor_map(self, request: TensorMapRequest) -> bytes:
        """Encode a tensor map to its 128 bytes; out-of-bounds elements are filled with zeros."""
        api, u32, u64 = self._api, self._api.cuuint32_t, self._api.cuuint64_t
        tensor_map = self._call(
            "cuTensorMapEncodeTiled",
            getattr(api.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{DTYPES[request.dtype].tensor_map}"),
            len(request.dims),
            request.pointer,
            [u64(extent) for extent in request.dims],
            [u64(stride) for stride in request.strides],
            [u32(extent) for extent in request.box],
            [u32(1)] * len(request.dims),
            api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(api.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{request.swizzle}B"),
            api.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        return struct.pack("<16Q", *map(int, tensor_map.opaque))

    def move_tensor_map(self, tensor_map: int, pointer: int) -> None:
        """Replace the tensor's address in an encoded map."""
        self._call("cuTensorMapReplaceAddress", self._api.CUtensorMap(tensor_map), pointer)

    def allocate(self, size: int, stream: int) -> int:
        """Stream-ordered allocation."""
        return int(self._call("cuMemAllocAsync", size, stream))

    def free(self, pointer: int, stream: int) -> None:
        """Stream-ordered free."""
        self._call("cuMemFreeAsync", pointer, stream)

    def copy_to_device(self, pointer: int, host: int, size: int, stream: int) -> None:
        """Copy from host memory. Page-locked source memory must stay unchanged until the copy is done; other memory may change
        after the call."""
        self._call("cuMemcpyHtoDAsync", pointer, host, size, stream)

    def copy_to_host(self, host: int, pointer: int, size: int, stream: int) -> None:
        """Copy to host memory; complete once the stream is synchronised."""
        self._call("cuMemcpyDtoHAsync", host, pointer, size, stream)

    def copy_on_device(self, pointer: int, source: int, size: int, stream: int) -> None:
        """Copy within device memory."""
        self._call("cuMemcpyDtoDAsync", pointer, source, size, stream)

    def fill(self, pointer: int, byte: int, size: int, stream: int) -> None:
        """Set every byte."""
        self._call("cuMemsetD8Async", pointer, byte, size, stream)

    def synchronize(self, stream: int) -> None:
        """Wait for the stream."""
        self._call("cuStreamSynchronize", stream)

    def memory(self) -> tuple[int, int]:
        """Free and total device memory in bytes."""
        code, free, total = self._api.cuMemGetInfo()
        if code != self._success:
            self._fail("cuMemGetInfo", code)
        return int(free), int(total)

    def allocate_host(self, size: int) -> int:
        """Page-locked host memory."""
        return int(self._call("cuMemAllocHost", size))

    def free_host(self, pointer: int) -> None:
        """Free page-locked memory."""
        self._call("cuMemFreeHost", pointer)

    def create_stream(self) -> int:
        """A stream that does not synchronize with the default stream."""
        return int(self._call("cuStreamCreate", self._api.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream; its pending work still completes."""
        self._call("cuStreamDestroy", stream)

    def begin_capture(self, stream: int) -> None:
        """Record what this thread enqueues on the stream; other threads are unaffected."""
        self._call("cuStreamBeginCapture", stream, self._api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)

    def end_capture(self, stream: int) -> Any:
        """The recorded work as an executable graph."""
        graph = self._call("cuStreamEndCapture", stream)
        try:
            return self._call("cuGraphInstantiate", graph, 0)
        finally:
            self._call("cuGraphDestroy", graph)

    def launch_graph(self, graph: Any, stream: int) -> None:
        """Enqueue a whole graph."""
        self._call("cuGraphLaunch", graph, stream)

    def destroy_graph(self, graph: Any) -> None:
        """Destroy an executable graph."""
        self._call("cuGraphExecDestroy", graph)

    def create_event(self, *, timing: bool = False) -> Any:
        """An event, without a time stamp unless `timing`."""
        flags = self._api.CUevent_flags
        return self._call("cuEventCreate", flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING)

    def record_event(self, event: Any, stream: int) -> None:
        """Record the event after the work enqueued on the stream so far."""
        self._call("cuEventRecord", event, stream)

    def wait_event(self, event: Any) -> None:
        """Block the host until the event has completed."""
        self._call("cuEventSynchronize", event)

    def elapsed(self, begin: Any, end: Any) -> float:
        """Milliseconds between two completed events."""
        return float(self._call("cuEventElapsedTime", begin, end))

    def destroy_event(self, event: Any) -> None:
        """Destroy an event."""
        self._call("cuEventDestroy", event)
