"""Launches a kernel on the interpreter and compares it with its reference, for `tilec run` and `tilec test`, in a worker.

In: a kernel file at one specialisation, and its reference: a function of NumPy arrays with the kernel's name. Its parameters
are named like the kernel's inputs, scalars, dims or constants (constants also in lower case). It returns the arrays that the
kernel writes, in the order of the kernel's parameters. Its file can have a table `TOLERANCES` of relative tolerances by kernel.
Inputs are random, or those of a function next to the reference (`tilec.project.trial.inputs`). Out: a `Trial` per launch, plain
data. The kernel is proven first. The author's Python code is executed.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from tilec.project.trial.cases import Case, write_case
from tilec.project.trial.coarse import least_tolerances
from tilec.project.trial.comparison import Written, compared, right, summary
from tilec.project.trial.inputs import OwnInputs, launch_inputs
from tilec.project.trial.interpreted import allowances, before_launch, bounds_of_errors, interpret, outputs_of
from tilec.project.trial.launches import Contract, LaunchValuesError, small_launches
from tilec.project.trial.printed import PrintedLines

if TYPE_CHECKING:
    from tilec.ir.core import Function

Array = NDArray[Any]

UNDEFINED_SHARE: Final = 0.01
"""Inputs are unsuitable if more of a reference's results than this share are NaN or +inf, which a wrong kernel may return as
well. A -inf can be meant, as the maximum of nothing."""


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """What to run. Each of the `launches` has different inputs, from `seed` on, and different sizes for values not in `dims`.
    `tolerance` (relative, absolute) replaces that of the dtype; `limits` apply to the proof and to each launch; `inputs` is the
    author's function that makes inputs. With `keep`, launch number I is also written to the file `KEEP-I.npz`."""

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
    keep: Path | None = None

    def kept(self, number: int) -> Path:
        """The file of launch `number`."""
        assert self.keep is not None
        return self.keep.with_name(f"{self.keep.name}-{number}.npz")


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a launch; `problem` says why there is no comparison, or one that shows too little, if `unsuitable`.
    `printed` are the lines that the kernel printed."""

    values: Mapping[str, float]
    seed: int
    blocks: int = 0
    written: tuple[Written, ...] = ()
    problem: str = ""
    unsuitable: bool = False
    printed: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        """Whether the launch has no problem and no error above 1."""
        return not self.problem and all(map(right, self.written))


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
            lines = PrintedLines()
            trial = _trial(request, function, contract, sizes[number % len(sizes)], number, lines)
            found.append(replace(trial, printed=lines.lines))
    return tuple(found)


def _trial(
    request: TrialRequest, function: Function, contract: Contract, values: Mapping[str, float], number: int,
    lines: PrintedLines,
) -> Trial:  # fmt: skip
    from tilec.interpreter import InterpreterError

    seed = request.seed + number
    values, storage = launch_inputs(contract, values, seed, request.inputs, request.dims.keys())
    integers = {name: int(value) for name, value in values.items() if not isinstance(value, float)}
    unchanged = {name: array.copy() for name, array in storage.items()}
    original = {} if request.keep is None else unchanged
    arrays = before_launch(contract, storage, integers)
    before = {name: array.copy() for name, array in arrays.items()}
    blocks = math.prod(axis.evaluate(integers) for axis in contract.grid)
    try:
        interpret(function, contract, arrays, values, lines.add)
    except InterpreterError as error:  # an error of the prover, or of the chosen sizes
        return Trial(values, seed, blocks, problem=f"the interpreter stopped: {error}")
    outputs = outputs_of(contract)
    case = None
    if original:
        allowed, bounds = allowances(function, contract, arrays), bounds_of_errors(function, contract, unchanged, values)
        case = Case(values, original, _stored(contract, arrays), allowed, bounds=bounds)
    if request.reference is None:
        return Trial(values, seed, blocks, tuple(summary(spec, arrays[spec.name]) for spec in outputs))
    try:
        expected, relative = reference_results(*request.reference, reference_inputs(contract, before, values), len(outputs))
    except NoReference as error:
        return Trial(values, seed, blocks, tuple(summary(spec, arrays[spec.name]) for spec in outputs), str(error))
    tolerance = (relative if request.tolerance[0] is None else request.tolerance[0], request.tolerance[1])
    least = least_tolerances(function)
    comparisons = _comparisons(outputs, arrays, expected, tolerance, {}, least)
    if tolerance == (None, None) and any(isinstance(one, Written) and not right(one) for one in comparisons):
        # What an author allows is meant; the default knows nothing of a kernel's steps, so an analysis of them decides.
        bounds = case.bounds if case else bounds_of_errors(function, contract, unchanged, values)
        comparisons = _comparisons(outputs, arrays, expected, tolerance, bounds, least)
    problem = next((one for one in comparisons if isinstance(one, str)), "")
    written = tuple(one for one in comparisons if isinstance(one, Written))
    if case is not None and not problem:
        plain = [truth if truth.dtype.kind in "fiub" else truth.astype(np.float64) for truth in expected]
        truths = {spec.name: truth for spec, truth in zip(outputs, plain, strict=True)}
        write_case(request.kept(number), replace(case, references=truths, tolerance=tolerance, least=least))
    unsuitable = "" if problem else _unsuitable(request, contract, written)
    return Trial(values, seed, blocks, written, problem or unsuitable, bool(unsuitable))


def _comparisons(
    outputs: list[TensorSpec],
    arrays: Mapping[str, Array],
    expected: list[Array],
    tolerance: tuple[float | None, float | None],
    bounds: Mapping[str, Array],
    least: Mapping[str, float],
) -> list[Written | str]:
    """Each result of the interpreter next to its reference."""
    return [
        compared(spec, arrays[spec.name], truth, tolerance, bounds.get(spec.name), least.get(spec.name, 0.0))
        for spec, truth in zip(outputs, expected, strict=True)
    ]


def _stored(contract: Contract, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The results of a launch as stored."""
    found = {spec.name: np.array(arrays[spec.name], order="C") for spec in outputs_of(contract)}
    return {spec.name: found[spec.name].view(DTYPES[spec.dtype].storage) for spec in outputs_of(contract)}


def _unsuitable(request: TrialRequest, contract: Contract, found: tuple[Written, ...]) -> str:
    """Why random inputs test too little; empty if they do not, or if the author chose the inputs."""
    if request.inputs is not None or all(spec.access in ("out", "scratch") for spec in contract.tensors):
        return ""
    for one in found:
        count = math.prod(one.shape)
        if one.undefined > UNDEFINED_SHARE * count and one.error is not None and one.error <= 1:
            return (
                f"the random inputs are unsuitable: the reference of `{one.name}` is nan or inf in {one.undefined} of {count} "
                f"results; write `def {request.path.stem}_inputs(rng, dims)` next to it"
            )
    return ""


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
