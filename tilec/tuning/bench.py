"""Checks and times the candidates of one kernel on a device.

In: artifacts by name, and the project's reference if there is one. Out: errors of a candidate, and its times at a shape. Inputs
are random within the contract, since zeros would draw less power. Outputs are filled with 0xFF bytes (NaN for floats) before
each check. Small launches are compared with the reference. The shapes to be timed are too large for NumPy: there each
candidate's results are compared with the element-wise median over all candidates, at samples across the whole tensor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.artifact.records import TensorSpec
from tilec.ir.types import DTYPES
from tilec.project.trial.comparison import Written, compared
from tilec.project.trial.inputs import READ, OwnInputs, launch_inputs
from tilec.project.trial.launches import Contract, LaunchValuesError, Stored, random_values, small_launches
from tilec.project.trial.trial import NoReference, reference_inputs, reference_results
from tilec.runtime import TRUSTED, Device, DeviceArray, Kernel, LaunchError, Plan, load
from tilec.runtime.driver import L2_BYTES
from tilec.target.dtypes import numpy_dtype
from tilec.tuning.clock import Starts, timed
from tilec.tuning.records import Shape, Time

CHECKS: Final = 3
"""Number of small launches at which each candidate is checked."""
TIMES_L2: Final = 3
"""Total size of the argument sets, as a multiple of the L2 cache."""
MOST_SETS: Final = 32
BLOCK: Final = (1 << 22) + 7919
"""Random elements generated per dtype; larger tensors repeat them, each tensor from a different offset."""
SAMPLES: Final = 64
SAMPLE_BYTES: Final = 4096
POISON: Final = 0xFF


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one launch: tensors and scalars by name, and dims that no tensor's shape determines."""

    tensors: Mapping[str, DeviceArray]
    scalars: Mapping[str, float]
    dims: Mapping[str, int]

    def plan(self, kernel: Kernel) -> Plan:
        """The launch plan; LaunchError if the arguments violate the contract."""
        vouched = {check.tensor: TRUSTED for check in kernel.manifest.value_checks}
        return kernel.plan({**self.tensors, **self.scalars}, values=vouched, dims=self.dims)


class Bench:
    """The candidates on one device. Each kernel is loaded on first use. Inputs are random, or those of `inputs`; scalars in
    `given` keep the value of a launch then."""

    def __init__(
        self, device: Device, artifacts: Mapping[str, Path], reference: tuple[Path, str] | None,
        inputs: OwnInputs | None = None, given: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.device, self.artifacts, self.reference = device, artifacts, reference
        self.inputs, self.given = inputs, given
        self._kernels: dict[str, Kernel] = {}
        self._blocks: dict[tuple[Any, ...], NDArray[Any]] = {}

    def kernel(self, name: str) -> Kernel:
        """The candidate, loaded on the device."""
        if name not in self._kernels:
            self._kernels[name] = load(self.artifacts[name], self.device)
        return self._kernels[name]

    def problem(self, name: str) -> str:
        """What is wrong with a candidate at small launches; empty if nothing is, or without a reference. DriverError if it
        faults: this process cannot use the device any more."""
        kernel = self.kernel(name)
        contract = Contract.of_manifest(kernel.manifest)
        if self.reference is None:
            return ""
        try:
            for number, values in enumerate(small_launches(contract, {})[:CHECKS]):
                wrong = self._compared(kernel, contract, self.reference, values, number)
                if wrong:
                    return wrong
        except (LaunchValuesError, NoReference) as error:
            return f"it cannot be checked: {error}"
        return ""

    def _compared(
        self, kernel: Kernel, contract: Contract, reference: tuple[Path, str], values: dict[str, float], seed: int
    ) -> str:  # fmt: skip
        values, storage = launch_inputs(contract, values, seed, self.inputs)
        integers = {name: int(value) for name, value in values.items() if not isinstance(value, float)}
        shapes = {spec.name: tuple(dim.evaluate(integers) for dim in spec.dims) for spec in contract.tensors}
        given = {spec.name: self._upload(spec, storage[spec.name], shapes[spec.name]) for spec in contract.tensors}
        wide = {spec.name: widened(spec, storage[spec.name]).reshape(shapes[spec.name]) for spec in contract.tensors}
        arguments = Arguments(given, {one.name: values[one.name] for one in contract.scalars}, _open_dims(contract, integers))
        arguments.plan(kernel).launch()
        self.device.driver.synchronize(0)
        outputs = [spec for spec in contract.tensors if spec.access not in ("in", "scratch")]
        expected, relative = reference_results(*reference, reference_inputs(contract, wide, values), len(outputs))
        for spec, truth in zip(outputs, expected, strict=True):
            found = compared(spec, widened(spec, given[spec.name].to_numpy()), truth, (relative, None))
            description = _wrong(found)
            if description:
                sizes = ", ".join(f"{name} = {value:g}" for name, value in values.items())
                return f"at {sizes}: {description}"
        return ""

    def _upload(self, spec: TensorSpec, storage: NDArray[Any], shape: tuple[int, ...]) -> DeviceArray:
        array = self.device.empty(shape, spec.dtype)
        if spec.access == "out":
            array.fill(POISON)
        elif storage.size:
            contiguous = np.ascontiguousarray(storage)
            self.device.driver.copy_to_device(array.pointer, contiguous.ctypes.data, array.nbytes, 0)
            self.device.driver.synchronize(0)
        return array

    def times(self, names: Sequence[str], shape: Shape, starts: Starts) -> tuple[dict[str, Time], dict[str, str]]:
        """Times of candidates at a shape, and the errors of wrong candidates, which are not timed. LaunchError if the shape
        violates the contract; DriverError as above."""
        contract = Contract.of_manifest(self.kernel(names[0]).manifest)
        sets = self.sets(contract, dict(shape))
        plans = {name: [arguments.plan(self.kernel(name)) for arguments in sets] for name in names}
        outputs = [spec for spec in contract.tensors if spec.access not in ("in", "scratch")]
        results: dict[str, dict[str, NDArray[Any]]] = {}
        for name in names:
            starts(name)
            for index, spec in enumerate(contract.tensors):
                if spec.access != "in":
                    self._fill(contract, spec, sets[0].tensors[spec.name], dict(shape), index)
            plans[name][0].launch()
            self.device.driver.synchronize(0)
            results[name] = {spec.name: self.sampled(spec, sets[0].tensors[spec.name]) for spec in outputs}
        wrong = differing(outputs, results)
        correct = {name: plans[name] for name in names if name not in wrong}
        return (timed(self.device.driver, correct, starts) if correct else {}), wrong

    def sets(self, contract: Contract, values: dict[str, Any]) -> list[Arguments]:
        """Argument sets that together exceed the L2 cache, as far as memory allows. LaunchError if `values` lacks a dim."""
        driver = self.device.driver
        missing = sorted(contract.names - values.keys() - {one.name for one in contract.scalars})
        missing = [name for name in missing if not any(name in map(str, spec.strides or ()) for spec in contract.tensors)]
        if missing:
            raise LaunchError("E0905", f"`shapes` gives no `{missing[0]}`", required=", ".join(sorted(contract.names)))
        scalars = {one.name: values.get(one.name, 0.5) for one in contract.scalars}
        own: dict[str, NDArray[Any]] = {}
        if self.inputs is not None:
            values, storage = launch_inputs(contract, {**scalars, **values}, 0, self.inputs, self.given)
            scalars = {one.name: values[one.name] for one in contract.scalars}
            own = {spec.name: elements_of(spec, storage[spec.name], values) for spec in contract.tensors if spec.access in READ}
        shapes = {spec.name: tuple(dim.evaluate(values) for dim in spec.dims) for spec in contract.tensors}
        bytes_ = sum(
            int(np.prod(shape)) * DTYPES[spec.dtype].bytes for spec in contract.tensors for shape in (shapes[spec.name],)
        )
        wanted = TIMES_L2 * driver.device_attribute(self.device.ordinal, L2_BYTES) // max(bytes_, 1) + 2
        room = max(1, driver.memory()[0] // 2 // max(bytes_, 1))
        found: list[Arguments] = []
        for number in range(min(MOST_SETS, wanted, room)):
            tensors = {spec.name: self.device.empty(shapes[spec.name], spec.dtype) for spec in contract.tensors}
            for index, spec in enumerate(contract.tensors):
                if spec.name in own:
                    driver.copy_to_device(tensors[spec.name].pointer, own[spec.name].ctypes.data, own[spec.name].nbytes, 0)
                else:
                    self._fill(contract, spec, tensors[spec.name], values, index + number * len(tensors))
            found.append(Arguments(tensors, scalars, _open_dims(contract, values)))
        driver.synchronize(0)
        return found

    def _fill(self, contract: Contract, spec: TensorSpec, array: DeviceArray, values: dict[str, int], shift: int) -> None:
        """Fill an input with random values, at a different offset of a random block for each `shift`; poison an output."""
        driver = self.device.driver
        if spec.access == "out":
            array.fill(POISON)
            return
        check = next((one for one in contract.value_checks if one.tensor == spec.name), None)
        stored = Stored.of(check, spec, values)
        item = DTYPES[spec.dtype].bytes
        count = array.nbytes // item
        size = count if stored.is_unrepeatable else min(count, BLOCK)
        key = (spec.dtype, stored, size)
        if key not in self._blocks:
            self._blocks[key] = np.ascontiguousarray(random_values(np.random.default_rng(0), spec, size, stored))
        block = self._blocks[key]
        begin = 0 if stored.is_unrepeatable else shift * 1_000_003 % size
        done = 0
        while done < count:
            part = min(size - begin, count - done)
            driver.copy_to_device(array.pointer + done * item, block.ctypes.data + begin * item, part * item, 0)
            done, begin = done + part, 0

    def sampled(self, spec: TensorSpec, array: DeviceArray) -> NDArray[Any]:
        """The values of a tensor at `sample_ranges`."""
        item = DTYPES[spec.dtype].bytes
        sample_ranges = self.sample_ranges(spec, array.nbytes)
        contiguous = np.empty((len(sample_ranges), sample_ranges[0][1] * item), np.uint8)
        for row, (first, count) in zip(contiguous, sample_ranges, strict=True):
            self.device.driver.copy_to_host(row.ctypes.data, array.pointer + first * item, count * item, 0)
        self.device.driver.synchronize(0)
        return widened(spec, contiguous.reshape(-1))

    @staticmethod
    def sample_ranges(spec: TensorSpec, nbytes: int) -> list[tuple[int, int]]:
        """Evenly spread samples of a tensor of `nbytes` bytes, including its start and end: (first element, count)."""
        item = DTYPES[spec.dtype].bytes
        part = min(SAMPLE_BYTES // item * item, nbytes)
        firsts = sorted({(nbytes - part) // item * number // (SAMPLES - 1) for number in range(SAMPLES)})
        return [(first, part // item) for first in firsts]


def differing(outputs: Sequence[TensorSpec], results: Mapping[str, Mapping[str, NDArray[Any]]]) -> dict[str, str]:
    """What is wrong with each candidate whose results differ from the median over all candidates."""
    wrong: dict[str, str] = {}
    for spec in outputs:
        middle = np.median(np.stack([one[spec.name] for one in results.values()]).astype(np.float64), axis=0)
        if np.isnan(middle).any():  # some candidate left an element unwritten: use the others
            complete = [one[spec.name] for one in results.values() if not np.isnan(one[spec.name].astype(np.float64)).any()]
            middle = np.median(np.stack(complete).astype(np.float64), axis=0) if complete else middle
        for name, one in results.items():
            description = _wrong(compared(spec, one[spec.name], middle, (None, None)))
            if description:
                wrong.setdefault(name, f"its result is not that of the others: {description}")
    return wrong


def _wrong(found: Written | str) -> str:
    """The error that a comparison found; empty if there is none."""
    if isinstance(found, str):
        return found
    if found.error is None or found.error <= 1:
        return ""
    element = ", ".join(map(str, found.worst))
    return f"`{found.name}[{element}]` is {found.found:g}, not {found.expected:g}"


def elements_of(spec: TensorSpec, storage: NDArray[Any], values: Mapping[str, int]) -> NDArray[Any]:
    """The elements of a tensor in row-major order without gaps, as stored."""
    if spec.strides is None:
        return np.ascontiguousarray(storage)
    shape = tuple(dim.evaluate(values) for dim in spec.dims)
    steps = [stride.evaluate(values) * storage.itemsize for stride in spec.strides]
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(storage, shape, steps))


def _open_dims(contract: Contract, values: Mapping[str, int]) -> dict[str, int]:
    """Dims that no tensor's shape determines."""
    shape_symbols = {name for spec in contract.tensors for dim in spec.dims for name in dim.symbols() if dim.op == "sym"}
    scalars = {one.name for one in contract.scalars}
    strides = {name for spec in contract.tensors for stride in spec.strides or () for name in stride.symbols()}
    return {
        name: value
        for name, value in values.items()
        if name in contract.names and name not in shape_symbols | scalars | strides
    }


def widened(spec: TensorSpec, storage: NDArray[Any]) -> NDArray[Any]:
    """Storage as a NumPy dtype with the same values. NoReference for 8-bit floats without ml_dtypes, which has them."""
    dtype = DTYPES[spec.dtype]
    if spec.dtype == "bf16":
        return (storage.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    try:
        values = storage.view(numpy_dtype(dtype))
    except ImportError:
        raise NoReference(f"NumPy has no {spec.dtype}; install ml_dtypes") from None
    return values.astype(np.float32) if dtype.is_float else values
