"""A GPU for tests of `tilec qualify`: device memory is host memory, and a launch runs the tile interpreter or the PTX emulator.

As a program it is the process that launches: `python -m tests.qualify.fake_device BUNDLE JUDGE FAULT KERNEL`. FAULT is what the
device does wrong whenever it launches KERNEL, one of `FAULTS`, or `none`.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.runtime.fake_driver import FakeDriver, Recorded
from tilec import emulator
from tilec.artifact.records import Manifest
from tilec.interpreter import run as interpret
from tilec.ir.core import Function
from tilec.ir.text.parser import parse_function
from tilec.qualify import child
from tilec.runtime import DriverError, Kernel, Plan, TensorView, open_bundle
from tilec.runtime.tensor_maps import TensorMapRequest
from tilec.target.dtypes import DTYPES, numpy_dtype

FAULTS: Final = (
    "constant", "element", "last block", "unwritten", "after the end", "before the start", "far after", "input", "varies",
    "varies late", "hang", "illegal address", "death", "no module", "refused",
)  # fmt: skip
HANGING: Final = "TEST_HANGING"
"""Environment variable that names a file, which a device that hangs creates."""
MICROSECONDS: Final = 5.0
"""Duration of a launch on the fake clock."""


class FakeDevice(FakeDriver):
    """`oracle` is `interpreter` or `emulator`; `fault` happens to `kernel`."""

    def __init__(self, path: str, oracle: str = "interpreter", fault: str = "none", kernel: str = "") -> None:
        super().__init__(multiprocessors=4)
        self.oracle, self.fault, self.kernel = oracle, fault, kernel
        with open_bundle(path, trust="none") as bundle:
            self.texts = bundle.texts()
            self.images = {hashlib.sha256(bundle.cubin(one)).digest(): one.manifest.kernel for one in bundle.kernels}
        self.plans: dict[int, Plan] = {}
        self.parsed: dict[str, Any] = {}
        self.now, self.count, self.broken = 0.0, 0, ""

    def device_attribute(self, ordinal: int, attribute: str) -> int:
        """A clock rate too."""
        return 1_000_000 if attribute.endswith("CLOCK_RATE") else super().device_attribute(ordinal, attribute)

    def allocate(self, size: int, stream: int) -> int:
        """Memory of which a few bytes beyond both ends can be written without harm to the process."""
        buffer = np.full(size + 8192, 0x5A, np.uint8)
        pointer = (buffer.ctypes.data + 4096 + 255) // 256 * 256
        self.buffers[pointer] = buffer
        return pointer

    def load_module(self, image: bytes) -> Any:
        """The module is the name of its kernel."""
        name = self.images[hashlib.sha256(image).digest()]
        if self.fault == "no module" and name == self.kernel:
            raise DriverError("cuModuleLoadData", "CUDA_ERROR_INVALID_IMAGE")
        return name

    def unload_module(self, module: Any) -> None:
        """Nothing to free."""

    def encode_tensor_map(self, request: TensorMapRequest) -> bytes:
        """The plan has the tensor's address."""
        return bytes(128)

    def move_tensor_map(self, tensor_map: int, pointer: int) -> None:
        raise NotImplementedError

    def launch(
        self, function: Any, grid: tuple[int, int, int], block: int, shared: int, stream: int, parameters: int, overlap: bool
    ) -> None:
        """Run the kernel; while a graph is captured, only record it."""
        if self.capturing is not None:
            self.capturing.append(Recorded(function, grid, block, shared, stream, parameters, overlap))
            return
        plan = self.plans[parameters]
        manifest = plan.kernel.manifest
        if self.oracle == "emulator":
            self._emulate(manifest, self.texts[manifest.digests["ptx"]].decode(), plan)
        else:
            launch = plan.checked
            arrays = {name: self._array(view) for name, view in launch.views.items()}
            parsed = self._function(self.texts[manifest.digests["tir"]])
            interpret(parsed, arrays, launch.scalars, dims={name: launch.env[name] for name in parsed.dims})
        if manifest.kernel == self.kernel:
            self.count += 1
            self._spoil(manifest, plan)

    def copy_on_device(self, pointer: int, source: int, size: int, stream: int) -> None:
        """Copy; while a graph is captured, only record it."""
        if self.capturing is not None:
            self.capturing.append(Recorded("copy", (1, 1, 1), 1, 0, stream, 0))
            return
        super().copy_on_device(pointer, source, size, stream)

    def launch_graph(self, graph: list[Recorded], stream: int) -> None:
        """A graph takes time and does nothing else."""
        self.now += MICROSECONDS * len(graph)

    def synchronize(self, stream: int) -> None:
        """Fails after a fault, as every call of a lost context."""
        if self.broken:
            raise DriverError("cuStreamSynchronize", self.broken)

    def record_event(self, event: Any, stream: int) -> None:
        """Note the time."""
        event.append(self.now)

    def elapsed(self, begin: Any, end: Any) -> float:
        """Milliseconds between two events, as they were recorded last."""
        return (end[-1] - begin[-1]) / 1000

    def capture(self, replace: Callable[[Any, str, Any], None] = setattr) -> None:
        """Note the plan of every launch, which has its tensors and values; `replace` sets an attribute."""
        original, plans = Kernel.plan, self.plans

        def plan(kernel: Kernel, *arguments: Any, **options: Any) -> Plan:
            made = original(kernel, *arguments, **options)
            plans[made.parameters] = made
            return made

        replace(Kernel, "plan", plan)

    def _function(self, tir: bytes) -> Function:
        text = tir.decode()
        if text not in self.parsed:
            self.parsed[text] = parse_function(text)
        return self.parsed[text]

    def _array(self, view: TensorView) -> Any:
        dtype = DTYPES[view.dtype]
        _, end = view.byte_range()
        raw = np.frombuffer((ctypes.c_uint8 * (end - view.pointer)).from_address(view.pointer), np.uint8)
        flat = raw.view(dtype.storage)
        steps = [stride * dtype.bytes for stride in view.strides]
        return np.lib.stride_tricks.as_strided(flat, view.shape, steps).view(numpy_dtype(dtype))

    def _emulate(self, manifest: Manifest, ptx: str, plan: Plan) -> None:
        launch = plan.checked
        if ptx not in self.parsed:
            self.parsed[ptx] = emulator.parse(ptx)
        arrays = {name: self._array(view) for name, view in launch.views.items()}
        values = {**launch.env, **launch.scalars}
        report = emulator.emulate(self.parsed[ptx], manifest, arrays, values)
        for spec in manifest.tensors:
            if spec.access != "in":
                arrays[spec.name][...] = report.tensors[spec.name].reshape(arrays[spec.name].shape)
        if any(fault.kind in ("bounds", "access", "address", "memory") for fault in report.faults):
            self.broken = "CUDA_ERROR_ILLEGAL_ADDRESS"

    def _spoil(self, manifest: Manifest, plan: Plan) -> None:
        """What the fault does after a launch."""
        views = plan.checked.views
        written = next(spec.name for spec in manifest.tensors if spec.access in ("out", "inout"))
        target, (first, end) = self._array(views[written]), views[written].byte_range()
        match self.fault:
            case "constant":
                target[...] = (target.astype(np.float32) * 1.05).astype(target.dtype)
            case "element":
                target.reshape(-1)[target.size // 2] += 1
            case "last block":
                target.reshape(-1)[-1:] = 0
            case "unwritten":
                target.reshape(-1)[:1].view(np.uint8)[...] = 0xFF
            case "after the end":
                ctypes.memset(end, 0, 1)
            case "before the start":
                ctypes.memset(first - 1, 0, 1)
            case "far after":
                ctypes.memset(end + 5000, 0, 16)
            case "input":
                read = next(spec.name for spec in manifest.tensors if spec.access == "in")
                ctypes.memset(views[read].byte_range()[1] - 1, 0x11, 1)
            case "varies" | "varies late":
                if self.count % 50 == (2 if self.fault == "varies" else 49):
                    target.reshape(-1)[:1].view(np.uint8)[0] ^= 1
            case "hang":
                Path(os.environ[HANGING]).touch()
                time.sleep(3600)
            case "illegal address":
                self.broken = "CUDA_ERROR_ILLEGAL_ADDRESS"
            case "death":
                os._exit(9)
            case "refused":
                raise DriverError("cuLaunchKernel", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")


def main(path: str, oracle: str, fault: str, kernel: str) -> int:
    """Serve one job on a fake device."""
    device = FakeDevice(path, oracle, fault, kernel)
    device.capture()
    return child.serve(device)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
