"""What the tile interpreter makes of a launch, and how other results of the same launch compare with it.

In: a kernel as tile IR, its contract, launch values and flat storage of its tensors (`tilec.project.trial.launches`). Out: the
tensors after the launch; and for results of the compiled kernel, how far they are from these. Rounding and the order of sums
allow as much as `tilec.qualify.tolerance` says: both sides round at the same places of the tile IR. Where that is not enough, a
running error analysis of the launch decides (`tilec.interpreter.error_bounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilec.artifact.records import TensorSpec
from tilec.ir.facts.order import order_dependent
from tilec.ir.types import DTYPES
from tilec.project.trial.comparison import Written, compared, right
from tilec.project.trial.launches import Contract

if TYPE_CHECKING:
    from tilec.ir.core import Function

Array = NDArray[Any]


def outputs_of(contract: Contract) -> list[TensorSpec]:
    """The tensors that a launch writes and that somebody reads afterwards."""
    return [spec for spec in contract.tensors if spec.access not in ("in", "scratch")]


def laid_out(spec: TensorSpec, storage: Array, values: Mapping[str, int]) -> Array:
    """Flat storage as an array for the interpreter, with shape and strides."""
    from tilec.target.dtypes import numpy_dtype

    flat = storage.view(numpy_dtype(DTYPES[spec.dtype]))
    shape = tuple(dim.evaluate(values) for dim in spec.dims)
    if spec.strides is None:
        return flat.reshape(shape)
    steps = tuple(stride.evaluate(values) * flat.itemsize for stride in spec.strides)
    return np.lib.stride_tricks.as_strided(flat, shape, steps)


def before_launch(contract: Contract, storage: Mapping[str, Array], values: Mapping[str, int]) -> dict[str, Array]:
    """All tensors as the interpreter takes them. What is only written is NaN, or 0 for integers; its storage changes."""
    arrays: dict[str, Array] = {}
    for spec in contract.tensors:
        if spec.access == "out":
            storage[spec.name].view(laid_out(spec, storage[spec.name], values).dtype)[...] = (
                np.nan if DTYPES[spec.dtype].is_float else 0
            )
        arrays[spec.name] = laid_out(spec, storage[spec.name], values)
    return arrays


def interpret(
    function: Function, contract: Contract, arrays: dict[str, Array], values: Mapping[str, float],
    printed: Callable[[str], object],
) -> None:  # fmt: skip
    """Launch on the interpreter, which changes `arrays`; `printed` takes the lines that the kernel prints. InterpreterError if
    it stops."""
    from tilec.interpreter import run

    scalars = {spec.name: values[spec.name] for spec in contract.scalars}
    dims = {name: int(values[name]) for name in function.dims if name in values}
    run(function, arrays, scalars, dims=dims, printed=printed)


def bounds_of_errors(
    function: Function, contract: Contract, storage: Mapping[str, Array], values: Mapping[str, float]
) -> dict[str, Array]:
    """How far each element of a result may be off by rounding, by name of a tensor, for the launch of `storage`, which stays.
    InterpreterError if it stops."""
    from tilec.interpreter.error_bounds import run_bounded

    integers = {name: int(value) for name, value in values.items() if not isinstance(value, float)}
    arrays = before_launch(contract, {name: array.copy() for name, array in storage.items()}, integers)
    scalars = {spec.name: values[spec.name] for spec in contract.scalars}
    return run_bounded(function, arrays, scalars, dims={name: int(values[name]) for name in function.dims if name in values})


def allowances(function: Function, contract: Contract, expected: Mapping[str, Array]) -> dict[str, tuple[float, float]]:
    """Relative and absolute tolerance of each result of the compiled kernel, by the interpreter's `expected` results."""
    from tilec.qualify.tolerance import Tolerance

    tolerance = Tolerance(function)
    return {
        spec.name: tolerance.of(spec.dtype, np.array(expected[spec.name], order="C").view(DTYPES[spec.dtype].storage))
        for spec in outputs_of(contract)
    }


def compared_with_interpreter(
    function: Function, contract: Contract, expected: Mapping[str, Array], found: Mapping[str, Array],
    bounds: Callable[[], Mapping[str, Array]],
) -> tuple[Written, ...]:  # fmt: skip
    """The largest difference of each result of the compiled kernel, `found`, from the interpreter's; of none that depends on
    the order in which blocks and threads run. `bounds` is called if any is above its tolerance: a chain of steps may amplify
    rounding beyond what the tolerance, which knows no steps, allows."""
    allowed, unordered = allowances(function, contract, expected), order_dependent(function)

    def within(bounds: Mapping[str, Array]) -> tuple[Written, ...]:
        rows = [
            compared(spec, found[spec.name], expected[spec.name], allowed[spec.name], bounds.get(spec.name))
            for spec in outputs_of(contract)
            if spec.name not in unordered
        ]
        return tuple(row for row in rows if isinstance(row, Written))

    return once_more(within, bounds)


def once_more(
    within: Callable[[Mapping[str, Array]], tuple[Written, ...]], bounds: Callable[[], Mapping[str, Array]]
) -> tuple[Written, ...]:  # fmt: skip
    """Results as `within` by tolerances alone, or, if one of them is wrong, with the bounds of the launch."""
    first = within({})
    return first if all(right(one) for one in first) else within(bounds())
