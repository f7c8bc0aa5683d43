"""Turns the operations of a StepGraph into checked launches of a bundle's kernels."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from engine.errors import BundleRefused, DeviceError
from engine.graph.contract import Contract
from engine.graph.integers import has_distinct_rows
from tilec.artifact.records import Manifest
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
from tilec.runtime.series import Numbers, Series
from tilec.runtime.tensors import contiguous_strides
from tilec.step.expressions import StepError
from tilec.step.graph import ITEM_BYTES, Constant, Op, StepGraph


def launch_message(error: LaunchError) -> str:
    """The message of a refused launch with its code at the end, for a line that already begins with `error:`."""
    return f"{str(error).removeprefix(f'error[{error.code}]: ')} ({error.code})"


class BundledKernels:
    """The kernels of a bundle that operations ask for."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._bundled_kernels: dict[Any, BundledKernel] = {}

    def bundled_kernel(self, op: Op) -> BundledKernel:
        """The bundle's kernel for an operation, at the constants that the step sets or the tuning chooses. BundleRefused if the
        bundle has no such kernel, or several."""
        if op.kernel not in self.bundle.tuning.choices:
            return self.find(op, op.constants)
        try:
            constants = self.bundle.tuning.constants(op.kernel, {name: view.shape for name, view in op.tensors.items()})
        except (StepError, KeyError, IndexError) as error:
            raise BundleRefused(f"operation `{op.name}`: {error}", fix="pack the bundle of this model") from None
        return self.find(op, constants | dict(op.constants))

    def contract(self, op: Op, bundled: BundledKernel) -> Contract | Manifest:
        """What the verifier of steps knows of an operation's kernel."""
        return bundled.manifest

    def find(self, op: Op, constants: Mapping[str, Constant]) -> BundledKernel:
        """The bundle's kernel for an operation at these constants."""
        key = (op.kernel, frozenset(constants.items()))
        if key not in self._bundled_kernels:
            try:
                self._bundled_kernels[key] = self.bundle.find(op.kernel, **constants)
            except BundleError as error:
                raise BundleRefused(f"operation `{op.name}`: {error.message}", fix="pack the bundle of this model") from None
        return self._bundled_kernels[key]


class Launches(BundledKernels):
    """Kernels of a bundle on a device, each loaded once, on first use."""

    def __init__(self, bundle: Bundle, device: Device) -> None:
        super().__init__(bundle)
        self.device = device
        self.load_seconds = 0.0
        """Seconds spent on finding and loading kernels so far."""
        self._kernels: dict[str, Kernel] = {}

    def plans(self, graph: StepGraph, pointers: Mapping[str, int]) -> Iterator[Plan]:
        """Every launch of a step in order, its contract checked; `pointers` are the addresses of all buffers. DeviceError names
        the operation whose contract is violated."""
        for op in graph.ops:
            yield self._plan(graph, op, pointers)

    def close(self) -> None:
        """Unload the kernels; idempotent."""
        for kernel in self._kernels.values():
            kernel.close()
        self._kernels.clear()

    def series(
        self, graph: StepGraph, ops: Sequence[Op], pointers: Mapping[str, int], bundled: BundledKernel
    ) -> Generator[None, None, Series]:  # fmt: skip
        """Launches of one kernel for operations that differ only in their buffers. Pauses once the kernel is loaded, and after
        the check of each launch."""
        kernel = self._kernel(ops[0], bundled)
        yield
        arguments = [self._arguments(graph, op, pointers, kernel.manifest) for op in ops]
        yield
        try:
            return (yield from Series.in_parts(kernel, arguments, self._values(graph, ops[0], kernel)))
        except LaunchError as error:
            raise DeviceError(f"operation `{ops[0].name}`: {launch_message(error)}") from None

    def numbers(self, graph: StepGraph, op: Op, series: Series) -> Numbers:
        """The launch parameters of a series for an operation with other extents."""
        shapes, scalars = self._numbers(op, series.kernel.manifest)
        try:
            return series.at(shapes, scalars, self._values(graph, op, series.kernel))
        except LaunchError as error:
            raise DeviceError(f"operation `{op.name}`: {launch_message(error)}") from None

    def _plan(self, graph: StepGraph, op: Op, pointers: Mapping[str, int]) -> Plan:
        kernel = self._kernel(op, self.bundled_kernel(op))
        try:
            arguments = self._arguments(graph, op, pointers, kernel.manifest)
            return kernel.plan(arguments, values=self._values(graph, op, kernel))
        except LaunchError as error:
            raise DeviceError(f"operation `{op.name}`: {launch_message(error)}") from None

    def _numbers(self, op: Op, manifest: Manifest) -> tuple[dict[str, tuple[int, ...]], Mapping[str, int | float]]:
        """The shapes and the scalars of a launch by parameter."""
        return {name: view.shape for name, view in op.tensors.items()}, op.scalars

    def _arguments(self, graph: StepGraph, op: Op, pointers: Mapping[str, int], manifest: Manifest) -> dict[str, Any]:
        """Tensors and scalars of a launch by parameter."""
        arguments: dict[str, Any] = dict(op.scalars)
        for name, view in op.tensors.items():
            buffer = graph.buffers[view.buffer]
            pointer = pointers[view.buffer] + view.offset * ITEM_BYTES[buffer.dtype]
            arguments[name] = TensorView(pointer, buffer.dtype, view.shape, contiguous_strides(view.shape))
        return arguments

    def _values(self, graph: StepGraph, op: Op, kernel: Kernel) -> dict[str, ValueBounds]:
        """Bounds of integer tensors, from the graph, for the kernel's value checks."""
        bounds: dict[str, ValueBounds] = {}
        for check in kernel.manifest.value_checks:
            view = op.tensors[check.tensor]
            buffer = graph.buffers[view.buffer]
            if buffer.low is not None and buffer.high is not None:
                rows = has_distinct_rows(buffer, view)
                bounds[check.tensor] = ValueBounds(buffer.low, buffer.high, buffer.distinct, distinct_in_rows=rows)
        return bounds

    def _kernel(self, op: Op, bundled: BundledKernel) -> Kernel:
        if bundled.name not in self._kernels:
            start = time.perf_counter()
            try:
                self._kernels[bundled.name] = self.bundle.load(bundled, self.device)
            except BundleError as error:
                raise BundleRefused(f"operation `{op.name}`: {error.message}", fix="pack the bundle of this model") from None
            except (LaunchError, DriverError) as error:
                raise DeviceError(f"operation `{op.name}`: {launch_message(error)}") from None
            self.load_seconds += time.perf_counter() - start
        return self._kernels[bundled.name]
