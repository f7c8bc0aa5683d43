"""From the operations of a StepGraph to checked launches of a bundle's kernels."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from engine.errors import BundleRefused, DeviceError
from engine.graph.step import ITEM_BYTES, Op, StepGraph
from tilec.runtime import (
    Bundle,
    BundledKernel,
    BundleError,
    Device,
    DriverError,
    Kernel,
    LaunchError,
    Plan,
    TensorView,
    ValueBounds,
)
from tilec.runtime.tensors import contiguous_strides


class Launches:
    """Kernels of a bundle on a device, each loaded once, when the first operation asks for it."""

    def __init__(self, bundle: Bundle, device: Device) -> None:
        self.bundle, self.device = bundle, device
        self.load_seconds = 0.0
        """Time spent on finding and loading kernels so far."""
        self._found: dict[Any, BundledKernel] = {}
        self._kernels: dict[str, Kernel] = {}

    def described(self, op: Op) -> BundledKernel:
        """The bundle's kernel for an operation; BundleRefused where it has none, or several that fit."""
        key = (op.kernel, tuple(op.constants.items()))
        if key not in self._found:
            try:
                self._found[key] = self.bundle.find(op.kernel, **op.constants)
            except BundleError as error:
                raise BundleRefused(f"operation `{op.name}`: {error.message}", fix="pack the bundle of this model") from None
        return self._found[key]

    def plans(self, graph: StepGraph, pointers: Mapping[str, int]) -> Iterator[Plan]:
        """Every launch of a step in order, its contract checked; `pointers` says where each buffer lies. DeviceError names the
        operation whose contract does not hold."""
        for op in graph.ops:
            yield self._plan(graph, op, pointers)

    def close(self) -> None:
        """Unload the kernels; idempotent."""
        for kernel in self._kernels.values():
            kernel.close()
        self._kernels.clear()

    def _plan(self, graph: StepGraph, op: Op, pointers: Mapping[str, int]) -> Plan:
        kernel = self._kernel(op)
        arguments: dict[str, Any] = dict(op.scalars)
        values: dict[str, ValueBounds] = {}
        checked = [check.tensor for check in kernel.manifest.value_checks]
        for name, view in op.tensors.items():
            buffer = graph.buffers[view.buffer]
            pointer = pointers[view.buffer] + view.offset * ITEM_BYTES[buffer.dtype]
            arguments[name] = TensorView(pointer, buffer.dtype, view.shape, contiguous_strides(view.shape))
            if name in checked and buffer.low is not None and buffer.high is not None:
                values[name] = ValueBounds(buffer.low, buffer.high, buffer.distinct)
        try:
            return kernel.plan(arguments, values=values)
        except LaunchError as error:
            raise DeviceError(f"operation `{op.name}`: {error}") from None

    def _kernel(self, op: Op) -> Kernel:
        found = self.described(op)
        if found.name not in self._kernels:
            began = time.perf_counter()
            try:
                self._kernels[found.name] = self.bundle.load(found, self.device)
            except BundleError as error:
                raise BundleRefused(f"operation `{op.name}`: {error.message}", fix="pack the bundle of this model") from None
            except (LaunchError, DriverError) as error:
                raise DeviceError(f"operation `{op.name}`: {error}") from None
            self.load_seconds += time.perf_counter() - began
        return self._kernels[found.name]
