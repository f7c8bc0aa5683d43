"""From arguments to a launch: binds dims from array shapes, checks the contract, evaluates the grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilec.interpreter.dtypes import Array, numpy_dtype
from tilec.interpreter.errors import InterpreterError
from tilec.ir.core import Function, Parameter, Promise, ValueFact
from tilec.ir.expr import Expr
from tilec.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Launch:
    """Arguments that satisfy the contract: arrays and scalars by parameter, integer launch values by name, the grid."""

    arrays: dict[str, Array]
    scalars: dict[str, Array]
    env: dict[str, int]
    grid: tuple[int, ...]


def bind(
    function: Function, arrays: Mapping[str, Array], scalars: Mapping[str, int | float], dims: Mapping[str, int]
) -> Launch:
    """Checks arguments against the kernel's parameters, `requires` and `values`; InterpreterError names the mismatch."""
    tensors = [parameter for parameter in function.parameters if parameter.access is not None]
    plain = [parameter for parameter in function.parameters if parameter.access is None]
    _same_names(function, "array", [p.name for p in tensors], arrays)
    _same_names(function, "scalar", [p.name for p in plain], scalars)
    env = dict(dims)
    held: dict[str, Array] = {}
    for parameter in plain:
        dtype = parameter.value.tile.dtype
        value = scalars[parameter.name]
        if dtype.is_integer and not dtype.integer_range()[0] <= value <= dtype.integer_range()[1]:
            raise _refusal(function, parameter, f"{value} does not fit {dtype}")
        held[parameter.name] = np.array(value).astype(numpy_dtype(dtype))
        if dtype.is_integer:
            env[parameter.name] = int(value)
    for parameter in tensors:
        _bind_symbols(function, parameter, arrays[parameter.name], env)
    for parameter in tensors:
        _check_tensor(function, parameter, arrays[parameter.name], env)
    for precondition in function.requires:
        if not _evaluate(function, precondition.condition, env):
            shown = ", ".join(f"{name} = {env[name]}" for name in dict.fromkeys(precondition.condition.symbols()))
            raise InterpreterError(
                f"`requires({precondition.condition})` is broken ({shown})", kernel=function.name, loc=precondition.loc
            )
    _check_values(function, arrays, env)
    grid = tuple(_evaluate(function, extent, env) for extent in function.grid)
    return Launch(dict(arrays), held, env, grid)


def _same_names(function: Function, kind: str, wanted: list[str], given: Mapping[str, object]) -> None:
    for name in wanted:
        if name not in given:
            raise InterpreterError(f"the {kind} `{name}` is missing", kernel=function.name)
    for name in given:
        if name not in wanted:
            raise InterpreterError(f"there is no {kind} parameter `{name}`", kernel=function.name)


def _refusal(function: Function, parameter: Parameter, message: str) -> InterpreterError:
    return InterpreterError(f"argument `{parameter.name}`: {message}", kernel=function.name, loc=parameter.loc)


def _type(parameter: Parameter) -> TensorType:
    return parameter.value.tensor


def _bind_symbols(function: Function, parameter: Parameter, array: Array, env: dict[str, int]) -> None:
    type_ = _type(parameter)
    if array.dtype != numpy_dtype(type_.dtype):
        raise _refusal(function, parameter, f"holds {array.dtype}, the kernel takes {type_.dtype}")
    if array.ndim != type_.rank:
        raise _refusal(function, parameter, f"has {array.ndim} axes, the kernel takes {type_.rank}")
    for expr, extent in zip(type_.dims, array.shape, strict=True):
        if expr.op == "sym":
            env.setdefault(expr.name, extent)
    for axis, expr in enumerate(type_.strides or ()):
        if expr.op == "sym":
            env.setdefault(expr.name, _stride(array, axis))


def _check_tensor(function: Function, parameter: Parameter, array: Array, env: Mapping[str, int]) -> None:
    type_ = _type(parameter)
    for axis, (expr, extent) in enumerate(zip(type_.dims, array.shape, strict=True)):
        wanted = _evaluate(function, expr, env)
        if extent != wanted:
            known = "" if expr.op == "const" else f" = {expr}"
            raise _refusal(function, parameter, f"axis {axis} has {extent} elements instead of {wanted}{known}")
    if type_.strides is None:
        if not array.flags.c_contiguous:
            raise _refusal(function, parameter, "is not row-major and contiguous")
        return
    for axis, expr in enumerate(type_.strides):
        wanted = _evaluate(function, expr, env)
        if array.shape[axis] > 1 and _stride(array, axis) != wanted:
            raise _refusal(function, parameter, f"axis {axis} has the stride {_stride(array, axis)} instead of {wanted}")


def _stride(array: Array, axis: int) -> int:
    return array.strides[axis] // array.itemsize


def held_before(function: Function, launch: Launch) -> dict[str, Array]:
    """The contents before the launch of the tensors that promises refer to."""
    return {name: launch.arrays[name].astype(object) for promise in function.promises for name in promise.above}


def check_promises(function: Function, launch: Launch, before: Mapping[str, Array]) -> None:
    """Checks the arrays after the launch against `ensures`; `before` comes from `held_before`."""
    for promise in function.promises:
        found = launch.arrays[promise.tensor]
        shares = found.astype(object) - sum(before[name] for name in promise.above) if promise.above else found
        _check_stored(function, promise, found, shares, launch.env)


def _check_stored(
    function: Function, fact: ValueFact | Promise, found: Array, bounded: Array, env: Mapping[str, int]
) -> tuple[int, int]:  # fmt: skip
    """Checks the range of the integers `bounded`, and whether `found` is distinct and sorted if the fact states it; returns
    the range."""
    low, high = _evaluate(function, fact.low, env), _evaluate(function, fact.high, env)
    outside = bounded[(bounded < low) | (bounded >= high)]
    if outside.size:
        message = f"`{fact.tensor}` holds {outside.flat[0]}, and not {low} <= value < {high}"
        if isinstance(fact, Promise) and fact.above:
            message = f"`{fact.tensor}` is {outside.flat[0]} above {', '.join(fact.above)}, and not from {low} to below {high}"
        raise InterpreterError(message, kernel=function.name, loc=fact.loc)
    if fact.distinct and np.unique(found).size != found.size:
        raise InterpreterError(f"`{fact.tensor}` holds a value twice", kernel=function.name, loc=fact.loc)
    if fact.sorted and np.any(found[1:] < found[:-1]):
        raise InterpreterError(f"`{fact.tensor}` is not sorted", kernel=function.name, loc=fact.loc)
    return low, high


def _check_values(function: Function, arrays: Mapping[str, Array], env: Mapping[str, int]) -> None:
    for fact in function.values:
        found = arrays[fact.tensor]
        low, high = _check_stored(function, fact, found, found, env)
        if fact.ends and (found[0] != low or found[-1] != high - 1):
            message = f"`{fact.tensor}` goes from {found[0]} to {found[-1]}, and not from {low} to {high - 1}"
            raise InterpreterError(message, kernel=function.name, loc=fact.loc)


def _evaluate(function: Function, expr: Expr, env: Mapping[str, int]) -> int:
    try:
        return expr.evaluate(env)
    except KeyError as error:
        message = f"no argument determines the dim {error.args[0]}; give it in `dims`"
        raise InterpreterError(message, kernel=function.name) from None
    except ZeroDivisionError:
        raise InterpreterError(f"`{expr}` divides by zero", kernel=function.name) from None
