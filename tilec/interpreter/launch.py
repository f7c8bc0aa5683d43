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
    scalar_parameters = [parameter for parameter in function.parameters if parameter.access is None]
    _check_names(function, "array", [p.name for p in tensors], arrays)
    _check_names(function, "scalar", [p.name for p in scalar_parameters], scalars)
    env = dict(dims)
    scalar_arrays: dict[str, Array] = {}
    for parameter in scalar_parameters:
        dtype = parameter.value.tile.dtype
        value = scalars[parameter.name]
        if dtype.is_integer and not dtype.integer_range()[0] <= value <= dtype.integer_range()[1]:
            raise _refusal(function, parameter, f"{value} does not fit {dtype}")
        scalar_arrays[parameter.name] = np.array(value).astype(numpy_dtype(dtype))
        if dtype.is_integer:
            env[parameter.name] = int(value)
    for parameter in tensors:
        _bind_symbols(function, parameter, arrays[parameter.name], env)
    _solve_symbols(tensors, arrays, env)
    for parameter in tensors:
        _check_tensor(function, parameter, arrays[parameter.name], env)
    for precondition in function.requires:
        if not _evaluate(function, precondition.condition, env):
            values = ", ".join(f"{name} = {env[name]}" for name in dict.fromkeys(precondition.condition.symbols()))
            raise InterpreterError(
                f"`requires({precondition.condition})` is broken ({values})", kernel=function.name, loc=precondition.loc
            )
    _check_values(function, arrays, env)
    grid = tuple(_evaluate(function, extent, env) for extent in function.grid)
    return Launch(dict(arrays), scalar_arrays, env, grid)


def _check_names(function: Function, kind: str, expected: list[str], arguments: Mapping[str, object]) -> None:
    for name in expected:
        if name not in arguments:
            raise InterpreterError(f"the {kind} `{name}` is missing", kernel=function.name)
    for name in arguments:
        if name not in expected:
            raise InterpreterError(f"there is no {kind} parameter `{name}`", kernel=function.name)


def _refusal(function: Function, parameter: Parameter, message: str) -> InterpreterError:
    return InterpreterError(f"argument `{parameter.name}`: {message}", kernel=function.name, loc=parameter.loc)


def _type(parameter: Parameter) -> TensorType:
    return parameter.value.tensor


def _taken(type_: TensorType) -> str:
    """The element type of a launch's array."""
    return str(type_.dtype) if type_.packed is None else f"{type_.dtype}, bytes of two elements of {type_.packed} each"


def _bind_symbols(function: Function, parameter: Parameter, array: Array, env: dict[str, int]) -> None:
    type_ = _type(parameter)
    if array.dtype != numpy_dtype(type_.dtype):
        raise _refusal(function, parameter, f"holds {array.dtype}, the kernel takes {_taken(type_)}")
    if array.ndim != type_.rank:
        raise _refusal(function, parameter, f"has {array.ndim} axes, the kernel takes {type_.rank}")
    for expr, extent in zip(type_.dims, array.shape, strict=True):
        if expr.op == "sym":
            env.setdefault(expr.name, extent)
    for axis, expr in enumerate(type_.strides or ()):
        if expr.op == "sym":
            env.setdefault(expr.name, _stride(array, axis))


def _solve_symbols(tensors: list[Parameter], arrays: Mapping[str, Array], env: dict[str, int]) -> None:
    """Binds symbols that are no whole extent: each that is the only unknown of an extent under `+`, `-` and `*`."""
    pending = [(e, n) for p in tensors for e, n in zip(_type(p).dims, arrays[p.name].shape, strict=True) if e.op != "const"]
    while True:
        found = [one for expr, extent in pending if (one := _solved(expr, extent, env)) is not None]
        if not found:
            return
        for name, value in found:
            env.setdefault(name, value)


def _solved(expr: Expr, value: int, env: Mapping[str, int]) -> tuple[str, int] | None:
    """The only unknown symbol and the value with which `expr` is `value`; None if there is no such symbol or no such value."""
    if expr.op == "sym":
        return None if expr.name in env else (expr.name, value)
    known = [all(name in env for name in arg.symbols()) for arg in expr.args]
    if expr.op not in ("+", "-", "*") or known[0] == known[1]:
        return None
    other, unknown = (expr.args[0], expr.args[1]) if known[0] else (expr.args[1], expr.args[0])
    try:
        number = other.evaluate(env)
    except ZeroDivisionError:
        return None
    if expr.op == "*":
        return _solved(unknown, value // number, env) if number and value % number == 0 else None
    rest = value - number if expr.op == "+" else number - value if known[0] else value + number
    return _solved(unknown, rest, env)


def _check_tensor(function: Function, parameter: Parameter, array: Array, env: Mapping[str, int]) -> None:
    type_ = _type(parameter)
    for axis, (expr, extent) in enumerate(zip(type_.dims, array.shape, strict=True)):
        expected = _evaluate(function, expr, env)
        if extent != expected:
            formula = "" if expr.op == "const" else f" = {expr}"
            raise _refusal(function, parameter, f"axis {axis} has {extent} elements instead of {expected}{formula}")
    if type_.strides is None:
        if not array.flags.c_contiguous:
            raise _refusal(function, parameter, "is not row-major and contiguous")
        return
    for axis, expr in enumerate(type_.strides):
        expected = _evaluate(function, expr, env)
        if array.shape[axis] > 1 and _stride(array, axis) != expected:
            raise _refusal(function, parameter, f"axis {axis} has the stride {_stride(array, axis)} instead of {expected}")


def _stride(array: Array, axis: int) -> int:
    return array.strides[axis] // array.itemsize


def contents_before(function: Function, launch: Launch) -> dict[str, Array]:
    """The contents before the launch of the tensors that promises refer to."""
    return {name: launch.arrays[name].astype(object) for promise in function.promises for name in promise.above}


def check_promises(function: Function, launch: Launch, before: Mapping[str, Array]) -> None:
    """Checks the arrays after the launch against `ensures`; `before` comes from `contents_before`."""
    for promise in function.promises:
        array = launch.arrays[promise.tensor]
        increments = array.astype(object) - sum(before[name] for name in promise.above) if promise.above else array
        _check_stored(function, promise, array, increments, launch.env)


def _check_stored(
    function: Function, fact: ValueFact | Promise, found: Array, integers: Array, env: Mapping[str, int]
) -> tuple[int, int]:  # fmt: skip
    """Checks the range of `integers`, and whether `found` is distinct, in all or in each row, and sorted if the fact states it;
    returns the range."""
    low, high = _evaluate(function, fact.low, env), _evaluate(function, fact.high, env)
    outside = integers[(integers < low) | (integers >= high)]
    if outside.size:
        message = f"`{fact.tensor}` holds {outside.flat[0]}, and not {low} <= value < {high}"
        if isinstance(fact, Promise) and fact.above:
            message = f"`{fact.tensor}` is {outside.flat[0]} above {', '.join(fact.above)}, and not from {low} to below {high}"
        raise InterpreterError(message, kernel=function.name, loc=fact.loc)
    if fact.distinct and np.unique(found).size != found.size:
        raise InterpreterError(f"`{fact.tensor}` holds a value twice", kernel=function.name, loc=fact.loc)
    if fact.distinct_in_rows:
        rows = np.sort(found, axis=-1)
        if np.any(rows[..., 1:] == rows[..., :-1]):
            raise InterpreterError(f"`{fact.tensor}` holds a value twice in a row", kernel=function.name, loc=fact.loc)
    if fact.sorted and np.any(found[1:] < found[:-1]):
        raise InterpreterError(f"`{fact.tensor}` is not sorted", kernel=function.name, loc=fact.loc)
    return low, high


def _check_values(function: Function, arrays: Mapping[str, Array], env: Mapping[str, int]) -> None:
    for fact in function.values:
        array = arrays[fact.tensor]
        low, high = _check_stored(function, fact, array, array, env)
        if fact.ends and (array[0] != low or array[-1] != high - 1):
            message = f"`{fact.tensor}` goes from {array[0]} to {array[-1]}, and not from {low} to {high - 1}"
            raise InterpreterError(message, kernel=function.name, loc=fact.loc)


def _evaluate(function: Function, expr: Expr, env: Mapping[str, int]) -> int:
    try:
        return expr.evaluate(env)
    except KeyError as error:
        message = f"no argument determines the dim {error.args[0]}; give it in `dims`"
        raise InterpreterError(message, kernel=function.name) from None
    except ZeroDivisionError:
        raise InterpreterError(f"`{expr}` divides by zero", kernel=function.name) from None
