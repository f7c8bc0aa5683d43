"""Launches a kernel on the interpreter and compares it with its reference, for `tilec run` and `tilec test`, in a worker.

In: a kernel file at one specialisation, and its reference: a function of NumPy arrays with the kernel's name. Its parameters
are named like the kernel's inputs, scalars, dims or constants (constants also in lower case). It returns the arrays that the
kernel writes, in the order of the kernel's parameters. Its file can have a table `TOLERANCES` of relative tolerances by kernel.
Inputs are random, or those of a function beside the reference (`tilec.project.trial.inputs`). Out: a `Trial` per launch, plain
data. The kernel is proven first. The author's Python code is executed.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec import progress
from tilec.artifact.records import TensorSpec
from tilec.ir.types import DTYPES
from tilec.progress import DEFAULT_LIMITS, Limits
from tilec.project.read.models import Constant
from tilec.project.read.python_file import execute
from tilec.project.trial.author_code import REFERENCES, author_errors, find_function
from tilec.project.trial.inputs import OwnInputs, launch_inputs
from tilec.project.trial.launches import Contract, LaunchValuesError, small_launches

if TYPE_CHECKING:
    from tilec.ir.core import Function

Array = NDArray[Any]

OUTLIER: Final = 1000
"""Elements above this multiple of the median magnitude are excluded from the root mean square."""
UNDEFINED_SHARE: Final = 0.01
"""Inputs are unsuitable if more of a reference's results than this share are NaN or +inf, which a wrong kernel may return as
well. A -inf can be meant, as the maximum of nothing."""


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """What to run. Each of the `launches` has different inputs, from `seed` on, and different sizes for values not in `dims`.
    `tolerance` (relative, absolute) replaces that of the dtype; `limits` apply to the proof and to each launch; `inputs` is the
    author's function that makes inputs."""

    path: Path
    root: Path
    constants: Mapping[str, Constant]
    dims: Mapping[str, float]
    seed: int = 0
    launches: int = 1
    reference: tuple[Path, str] | None = None
    tolerance: tuple[float | None, float | None] = (None, None)
    limits: Limits = DEFAULT_LIMITS
    inputs: OwnInputs | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """A tensor that the kernel wrote, with a printable `summary`. With a reference, `error` is the largest difference in units
    of the tolerance (correct if at most 1), at the element `worst` with the values `found` and `expected`; `not_finite` is the
    number of results that are infinite or NaN where the reference is finite (`worst` is then the first of them), `undefined`
    that of NaN and +inf in the reference."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    summary: str
    error: float | None = None
    worst: tuple[int, ...] = ()
    found: float = 0.0
    expected: float = 0.0
    not_finite: int = 0
    undefined: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a launch; `problem` says why there is no comparison, or one that shows too little, if `unsuitable`."""

    values: Mapping[str, float]
    seed: int
    blocks: int = 0
    written: tuple[Written, ...] = ()
    problem: str = ""
    unsuitable: bool = False

    @property
    def right(self) -> bool:
        """Whether the launch has no problem and no error above 1."""
        return not self.problem and all(one.error is None or one.error <= 1 for one in self.written)


def trials(request: TrialRequest) -> tuple[Trial, ...]:
    """Prove the kernel once, then launch and compare. CompileError if the kernel is refused."""
    from tilec.frontend import load_kernel
    from tilec.passes.prover import prove

    kernel = f"kernel `{request.path.stem}`"
    with progress.stage(f"the proof of {kernel}", request.limits):
        function = load_kernel(request.path, request.constants, root=request.root)
        contract = Contract.of_function(function, prove(function))
        try:
            sizes = small_launches(contract, dict(request.dims))
        except LaunchValuesError as error:
            return (Trial({}, request.seed, problem=str(error)),)
    found: list[Trial] = []
    for number in range(request.launches):
        with progress.stage(f"a launch of {kernel}", request.limits):
            found.append(_trial(request, function, contract, sizes[number % len(sizes)], request.seed + number))
    return tuple(found)


def _trial(request: TrialRequest, function: Function, contract: Contract, values: Mapping[str, float], seed: int) -> Trial:
    from tilec.interpreter import InterpreterError, run

    values, storage = launch_inputs(contract, values, seed, request.inputs, request.dims.keys())
    integers = {name: int(value) for name, value in values.items() if not isinstance(value, float)}
    arrays = {spec.name: _shaped(spec, storage[spec.name], integers) for spec in contract.tensors}
    before = {name: array.copy() for name, array in arrays.items()}
    scalars = {spec.name: values[spec.name] for spec in contract.scalars}
    given = {name: value for name, value in integers.items() if name in function.dims}
    blocks = math.prod(axis.evaluate(integers) for axis in contract.grid)
    try:
        run(function, arrays, scalars, dims=given)
    except InterpreterError as error:  # an error of the prover, or of the chosen sizes
        return Trial(values, seed, blocks, problem=f"the interpreter stopped: {error}")
    outputs = [spec for spec in contract.tensors if spec.access not in ("in", "scratch")]
    if request.reference is None:
        return Trial(values, seed, blocks, tuple(_written(spec, arrays[spec.name]) for spec in outputs))
    try:
        expected, relative = reference_results(*request.reference, reference_inputs(contract, before, values), len(outputs))
    except NoReference as error:
        return Trial(values, seed, blocks, tuple(_written(spec, arrays[spec.name]) for spec in outputs), str(error))
    tolerance = (relative if request.tolerance[0] is None else request.tolerance[0], request.tolerance[1])
    comparisons = [compared(spec, arrays[spec.name], truth, tolerance) for spec, truth in zip(outputs, expected, strict=True)]
    problem = next((one for one in comparisons if isinstance(one, str)), "")
    written = tuple(one for one in comparisons if isinstance(one, Written))
    unsuitable = "" if problem else _unsuitable(request, contract, written)
    return Trial(values, seed, blocks, written, problem or unsuitable, bool(unsuitable))


def _unsuitable(request: TrialRequest, contract: Contract, found: tuple[Written, ...]) -> str:
    """Why random inputs test too little; empty if they do not, or if the author chose the inputs."""
    if request.inputs is not None or all(spec.access in ("out", "scratch") for spec in contract.tensors):
        return ""
    for one in found:
        count = math.prod(one.shape)
        if one.undefined > UNDEFINED_SHARE * count and one.error is not None and one.error <= 1:
            return (
                f"the random inputs are unsuitable: the reference of `{one.name}` is nan or inf in {one.undefined} of {count} "
                f"results; write `def {request.path.stem}_inputs(rng, dims)` beside it, which returns inputs by name"
            )
    return ""


def _shaped(spec: TensorSpec, storage: Array, values: dict[str, int]) -> Array:
    """Flat storage as an array for the interpreter, with shape and strides; an output is filled with NaN, or 0 for integers."""
    from tilec.interpreter.dtypes import numpy_dtype
    from tilec.ir.types import DTYPES

    flat = storage.view(numpy_dtype(DTYPES[spec.dtype]))
    if spec.access == "out":
        flat[...] = np.nan if DTYPES[spec.dtype].is_float else 0
    shape = tuple(dim.evaluate(values) for dim in spec.dims)
    if spec.strides is None:
        return flat.reshape(shape)
    steps = tuple(stride.evaluate(values) * flat.itemsize for stride in spec.strides)
    return np.lib.stride_tricks.as_strided(flat, shape, steps)


def own_reference(kernels: Path, kernel: str, files: str = REFERENCES) -> tuple[Path, str] | None:
    """The file and name of the function called like the kernel, in one of `files` next to the kernels. Files are parsed but not
    executed."""
    return find_function(kernels, kernel, files)


class NoReference(Exception):
    """The reference cannot be used; the text says why."""


def reference_inputs(contract: Contract, arrays: dict[str, Array], values: Mapping[str, float]) -> dict[str, Any]:
    """The possible arguments of a reference, by name; constants also under their lower-case names."""
    found: dict[str, Any] = {name.lower(): value for name, value in contract.constants.items()}
    found |= dict(contract.constants) | dict(values)
    return found | {spec.name: arrays[spec.name] for spec in contract.tensors if spec.access in ("in", "inout", "atomic")}


def reference_results(path: Path, name: str, inputs: dict[str, Any], outputs: int) -> tuple[list[Array], float | None]:
    """Execute a reference: the arrays that it returns, and its own relative tolerance if its file has one. Raises
    NoReference."""
    shown = f"`{path.name}:{name}`"
    with author_errors(shown, path, NoReference):
        module = execute(path, "reference")
    function = getattr(module, name, None)
    if not callable(function):
        raise NoReference(f"`{path.name}` has no function `{name}`")
    with author_errors(shown, path, NoReference):
        wanted = inspect.signature(function).parameters
    for parameter in wanted:
        if parameter not in inputs:
            raise NoReference(f"{shown} asks for `{parameter}`; there are {', '.join(f'`{one}`' for one in inputs)}")
    with author_errors(shown, path, NoReference):
        result: Any = function(**{parameter: inputs[parameter] for parameter in wanted})
    results: list[Any] = list(result) if isinstance(result, tuple) else [result]  # pyright: ignore[reportUnknownArgumentType]
    if len(results) != outputs:
        raise NoReference(f"{shown} returns {len(results)} arrays; the kernel writes {outputs}")
    tolerances: Any = getattr(module, "TOLERANCES", {})
    with author_errors(shown, path, NoReference):
        arrays = [np.asarray(one) for one in results]
        relative = tolerances.get(name) if isinstance(tolerances, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        for array in arrays:
            array.astype(np.complex128)  # raises if it is not numeric
    return arrays, None if relative is None else float(relative)  # pyright: ignore[reportUnknownArgumentType]


def _written(spec: TensorSpec, array: Array) -> Written:
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    summary = f"{finite.min():.6g} to {finite.max():.6g}, mean {finite.mean():.6g}" if finite.size else "nothing finite"
    not_finite = wide.size - finite.size
    return Written(spec.name, spec.dtype, array.shape, summary + (f", {not_finite} not finite" if not_finite else ""))


def _typical(expected: Array) -> float:
    """The root mean square of finite elements without outliers, so that a few large elements do not loosen the tolerance."""
    sizes = np.abs(expected[np.isfinite(expected)])
    middle = float(np.median(sizes)) if sizes.size else 0.0
    usual = sizes[sizes <= OUTLIER * middle] if middle else sizes
    return float(np.sqrt(np.mean(usual * usual))) if usual.size else 0.0


def compared(
    spec: TensorSpec, array: Array, truth: Array, tolerance: tuple[float | None, float | None]
) -> Written | str:  # fmt: skip
    """The largest error of a result in units of the tolerance, or a text that says why it cannot be compared."""
    seen = _written(spec, array)
    if truth.shape != array.shape:
        return f"`{spec.name}` has shape {array.shape}, the reference's {truth.shape}"
    if np.iscomplexobj(truth):
        return f"the reference of `{spec.name}` is complex"
    if array.size == 0:
        return seen
    found, expected = array.astype(np.float64), truth.astype(np.float64)
    relative, absolute = tolerance
    with np.errstate(all="ignore"):
        relative = DTYPES[spec.dtype].tolerance if relative is None else relative
        if absolute is None:
            absolute = relative * _typical(expected)
        allowed = absolute + relative * np.abs(expected)
        comparable = np.isfinite(found) & np.isfinite(expected) & (allowed > 0)
        error = np.where(comparable, np.abs(found - expected) / np.where(comparable, allowed, 1.0), np.inf)
        same = (found == expected) | (np.isnan(found) & np.isnan(expected))
        if not DTYPES[spec.dtype].is_float:  # float64 cannot represent all 64-bit integers
            same = array == truth
        error = np.where(same, 0.0, error)
    missing = np.isfinite(expected) & ~np.isfinite(found)
    undefined = int(np.count_nonzero(np.isnan(expected) | (expected == np.inf))) if truth.dtype.kind == "f" else 0
    worst = np.unravel_index(int(np.argmax(missing if missing.any() else error)), error.shape)
    return Written(
        spec.name, spec.dtype, array.shape, seen.summary, float(error[worst]), tuple(map(int, worst)), float(found[worst]),
        float(expected[worst]), int(np.count_nonzero(missing)), undefined,
    )  # fmt: skip
