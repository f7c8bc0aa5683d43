"""The inputs of a launch: random within the contract, or those of the author's function `KERNEL_inputs(rng, dims)`.

The function stands next to the reference, in a `reference*.py` next to the kernels. `rng` is a `numpy.random.Generator` whose
seed is the launch's. `dims` has dims, strides and scalars of the launch, and the kernel's constants, by name. It returns a dict
with arrays for some of the tensors that the kernel reads, and numbers for some of its scalars; the others stay random. In: a
contract, launch values, a seed and the function. Out: launch values, and tensors as flat storage. What does not satisfy the
contract is CompileError E0815.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.artifact.records import ScalarSpec, TensorSpec, ValueCheck
from tilec.diagnostics.diagnostic import CompileError, Diagnostic, Label, Span
from tilec.ir.types import DTYPES, MAX_DIM
from tilec.project.read.python_file import execute
from tilec.project.trial.author_code import author_errors, defined_in, find_function
from tilec.project.trial.launches import Contract, random_tensors, span_of, values_text
from tilec.runtime.errors import LaunchError
from tilec.runtime.tensors import TensorView
from tilec.runtime.values import check_evidence
from tilec.target.dtypes import numpy_dtype

Array = NDArray[Any]
SUFFIX: Final = "_inputs"
READ: Final = ("in", "inout", "atomic")
"""Access of the tensors that a kernel reads."""


class InputsRefused(CompileError):
    """E0815, with its message and the two sides of what is not satisfied, as text."""

    def __init__(self, found: Diagnostic, given: str, required: str) -> None:
        super().__init__(found)
        self.message, self.given, self.required = found.message, given, required


@dataclass(frozen=True, slots=True)
class OwnInputs:
    """A function that makes inputs: `name` in the file `path`. Diagnostics name the file relative to `root`."""

    path: Path
    name: str
    root: Path

    @property
    def shown(self) -> str:
        """The function as text."""
        return f"`{self.path.name}:{self.name}`"

    def refused(self, message: str, given: str = "", required: str = "") -> InputsRefused:
        """E0815 at the function's definition. `given` and `required` become notes."""
        line = defined_in(self.path).get(self.name, 1)
        file = os.path.relpath(self.path, self.root.resolve())
        label = Label(Span(file, line, 0, line, len(f"def {self.name}")))
        notes = tuple(f"{side}: {text}" for side, text in (("given", given), ("required", required)) if text)
        hint = f"`{self.name}(rng, dims)` returns a dict of inputs by name; those that it leaves out are random"
        return InputsRefused(Diagnostic("E0815", message, label, notes=notes, hint=hint), given, required)


def own_inputs(kernels: Path, kernel: str, root: Path, file: Path | None = None) -> OwnInputs | None:
    """The function `KERNEL_inputs` in `file` if it has one, else in a `reference*.py` next to the kernels; None
    without one. Nothing is executed."""
    name = kernel + SUFFIX
    if file is not None and name in defined_in(file):
        return OwnInputs(file.resolve(), name, root)
    found = find_function(kernels, name)
    return None if found is None else OwnInputs(*found, root)


def launch_inputs(
    contract: Contract, values: Mapping[str, float], seed: int, own: OwnInputs | None, given: Collection[str] = ()
) -> tuple[dict[str, float], dict[str, Array]]:
    """Launch values, and flat storage of all tensors as `random_tensors` has it. Scalars in `given`, which the user wrote at
    the command line, keep their values. CompileError E0815 if `own` fails or does not satisfy the contract."""
    if own is None:
        return dict(values), random_tensors(contract, values, seed)
    chosen = _returned(own, contract, values, seed)
    scalars = {spec.name: spec for spec in contract.scalars}
    tensors = {spec.name: spec for spec in contract.tensors if spec.access in READ}
    for name in chosen:
        if name not in scalars and name not in tensors:
            known = ", ".join(f"`{one}`" for one in (*tensors, *scalars))
            raise own.refused(_unknown(own, contract, name), required=f"one of {known}")
    numbers = {
        name: _number(own, scalars[name], value) for name, value in chosen.items() if name in scalars and name not in given
    }
    merged = {**values, **numbers}
    env = {name: int(value) for name, value in merged.items() if not isinstance(value, float)}
    if numbers:
        _check_launch(own, contract, env, numbers)
    storage = random_tensors(contract, merged, seed)
    for name, value in chosen.items():
        if name in tensors:
            _fill(own, contract, tensors[name], value, env, storage[name])
    return merged, storage


def _returned(own: OwnInputs, contract: Contract, values: Mapping[str, float], seed: int) -> dict[str, Any]:
    """What the function returns."""
    with author_errors(own.shown, own.path, own.refused):
        function = getattr(execute(own.path, "reference"), own.name, None)
    if not callable(function):
        raise own.refused(f"`{own.path.name}` has no function `{own.name}`")
    with author_errors(own.shown, own.path, own.refused):
        parameters = list(inspect.signature(function).parameters)
    if len(parameters) != 2:
        raise own.refused(f"{own.shown} takes {len(parameters)} arguments", f"({', '.join(parameters)})", "(rng, dims)")
    with author_errors(own.shown, own.path, own.refused):
        found: Any = function(np.random.default_rng([seed, 2]), {**contract.constants, **values})
    if not isinstance(found, dict):
        raise own.refused(f"{own.shown} returns no dict", f"`{type(found).__name__}`", "a dict of arrays and numbers by name")
    return {str(name): value for name, value in found.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _unknown(own: OwnInputs, contract: Contract, name: str) -> str:
    """Why a name in the dict is none of an input."""
    if any(spec.name == name for spec in contract.tensors):
        return f"{own.shown} gives `{name}`, which the kernel does not read"
    if name in contract.names:
        return f"{own.shown} gives the dim `{name}`, which is chosen before it is called"
    return f"{own.shown} gives `{name:.80}`, which is no input of the kernel"


def _number(own: OwnInputs, spec: ScalarSpec, value: Any) -> float:
    """A scalar as a launch value: a float for floats, else an integer in the range of the dtype."""
    dtype = DTYPES[spec.dtype]
    with author_errors(f"{own.shown}: `{spec.name}`", own.path, own.refused):
        array = np.asarray(value)
    required = f"one number of {spec.dtype}"
    if array.ndim or array.dtype.kind not in ("fiub" if dtype.is_float else "iub"):
        given = f"an array of shape {array.shape}" if array.ndim else f"`{array.dtype}`"
        raise own.refused(f"{own.shown} gives `{spec.name}` as no such number", given, required)
    if dtype.is_float:
        return float(array)
    low, high = dtype.integer_range()
    if not low <= int(array) <= high:
        raise own.refused(f"{own.shown} gives a `{spec.name}` out of range", str(int(array)), f"{low} to {high}")
    return int(array)


def _check_launch(own: OwnInputs, contract: Contract, env: Mapping[str, int], numbers: Mapping[str, float]) -> None:
    """Whether the launch checks, extents and the grid allow the scalars."""
    shown = values_text(numbers, ", ")
    for check in contract.launch_checks:
        if not check.condition.evaluate(env):
            raise own.refused(f"{own.shown} gives scalars that the launch checks do not allow", shown, check.text)
    extents = [(f"an extent of `{spec.name}`", dim) for spec in contract.tensors for dim in spec.dims]
    for what, expr in (*extents, *(("an axis of the grid", axis) for axis in contract.grid)):
        if not 1 <= expr.evaluate(env) <= MAX_DIM:
            required = f"{what}, `{expr}`, from 1 to {MAX_DIM}; it is {expr.evaluate(env)}"
            raise own.refused(f"{own.shown} gives scalars that no launch has", shown, required)


def _fill(
    own: OwnInputs, contract: Contract, spec: TensorSpec, value: Any, env: Mapping[str, int], storage: Array
) -> None:  # fmt: skip
    """Check the array of a tensor and write its elements into the tensor's storage."""
    with author_errors(f"{own.shown}: `{spec.name}`", own.path, own.refused):
        array = np.asarray(value)
    shape = tuple(dim.evaluate(env) for dim in spec.dims)
    if array.shape != shape:
        text = ", ".join(map(str, spec.dims))
        raise own.refused(f"{own.shown} gives `{spec.name}` in another shape", str(array.shape), f"{shape}, which is ({text})")
    bits = _stored(own, spec, array)
    integers = array if DTYPES[spec.dtype].is_integer else None
    for check in contract.value_checks:
        if check.tensor == spec.name and integers is not None:
            _check_values(own, check, env, integers)
    strides = [stride.evaluate(env) * storage.itemsize for stride in spec.strides] if spec.strides is not None else None
    view = storage[: span_of(spec, dict(env))]
    target = view.reshape(shape) if strides is None else np.lib.stride_tricks.as_strided(view, shape, strides)
    target[...] = bits


def _stored(own: OwnInputs, spec: TensorSpec, array: Array) -> Array:
    """An array in the dtype of the tensor, as stored. Floats are rounded to nearest; what the dtype cannot hold is refused."""
    dtype = DTYPES[spec.dtype]
    wanted = f"{spec.dtype}[{', '.join(map(str, spec.dims))}]"
    try:
        target = numpy_dtype(dtype)
    except ImportError as error:
        raise own.refused(f"{own.shown} gives `{spec.name}`, and no {spec.dtype} can be made here: {error}") from None
    if array.dtype == target:
        return array.view(dtype.storage) if dtype.extension else array
    kinds = "fiub" if dtype.is_float else "b" if dtype.kind == "b" else "iub"
    is_narrow_float = array.dtype.kind == "V" and dtype.is_float and np.can_cast(array.dtype, np.float64)
    if array.dtype.kind not in kinds and not is_narrow_float:
        raise own.refused(f"{own.shown} gives `{spec.name}` in another dtype", f"`{array.dtype}`", wanted)
    if dtype.is_float:
        with np.errstate(all="ignore"):
            wide = array.astype(np.float64)
            rounded = wide.astype(target) if not dtype.extension else wide.astype(np.float32).astype(target)
            seen = rounded.astype(np.float64)
        kept = (np.isfinite(wide) & np.isfinite(seen)) | (np.isnan(wide) & np.isnan(seen)) | (np.isinf(wide) & (wide == seen))
        required = f"values of {wanted}, whose largest is {dtype.largest:g}"
    else:
        low, high = dtype.integer_range()
        kept = (array >= low) & (array <= high)
        rounded, required = array.astype(target), f"values of {wanted}, from {low} to {high}"
    _first_refused(own, spec, array, ~np.asarray(kept), required)
    return rounded.view(dtype.storage) if dtype.extension else rounded


def _first_refused(own: OwnInputs, spec: TensorSpec, array: Array, refused: NDArray[np.bool_], required: str) -> None:
    """Raise for the first element that the dtype cannot hold."""
    if refused.any():
        index = tuple(int(part) for part in np.unravel_index(int(np.argmax(refused)), array.shape))
        given = f"{array[index]} at index {list(index)}"
        raise own.refused(f"{own.shown} gives a value that `{spec.name}` cannot hold", given, required)


def _check_values(own: OwnInputs, check: ValueCheck, env: Mapping[str, int], array: Array) -> None:
    """Whether stored integers satisfy a value check, as a launch would ask."""
    view = TensorView(0, "i64", array.shape, (1,) * array.ndim)
    try:
        check_evidence(check, env, view, array, kernel="", read_back=None)
    except LaunchError as error:
        message = f"{own.shown} gives a `{check.tensor}` outside of its `values`: {error.message}"
        raise own.refused(message, error.given, error.required) from None
