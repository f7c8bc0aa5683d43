"""Solves the symbolic dims of a launch: one value per symbol, from shapes, strides and integer scalars.

A dim that is a bare symbol gets the tensor's extent. An expression with a single unknown under `+`, `-` and `*` is inverted.
Then every dim of every tensor must evaluate to the given extent, otherwise E0906 names the tensor and the axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tilec.artifact.records import Manifest
from tilec.ir.expr import Expr
from tilec.ir.types import DTYPES, MAX_DIM
from tilec.runtime.errors import LaunchError, shown
from tilec.runtime.tensors import TensorView

MAX_BITS: Final = 4096
"""Maximum bits of an expression's value: far above every limit of a launch, and short enough to print."""


@dataclass(frozen=True, slots=True)
class _Equation:
    """`expr` must equal `value`, the extent or stride (`kind`) of axis `axis` of tensor `tensor`."""

    expr: Expr
    value: int
    tensor: str
    axis: int
    kind: str


def solve_dims(
    manifest: Manifest, views: Mapping[str, TensorView], scalars: Mapping[str, int | float], given: Mapping[str, int],
    least: int = 1,
) -> dict[str, int]:  # fmt: skip
    """The values of all dims, strides and integer scalars by name. `least` is the smallest extent allowed: 1 for a launch."""
    kernel = manifest.kernel
    env = {spec.name: int(scalars[spec.name]) for spec in manifest.scalars if not DTYPES[spec.dtype].is_float}
    if not given and (direct := _read_directly(manifest, views, env)) is not None:
        return direct
    origin = {name: f"argument `{name}`" for name in env}
    for name, value in given.items():
        if name in env:
            raise LaunchError("E0906", f"`{name}` is given twice", kernel=kernel, argument=name)
        _check_range(name, value, kernel, name, least)
        env[name], origin[name] = value, "`dims`"
    equations = list(_equations(manifest, views))
    pending, progress = equations, True
    while pending and progress:
        progress, unsolved = False, list[_Equation]()
        for equation in pending:
            if equation.expr.op == "const":
                continue
            unknown = {name for name in equation.expr.symbols() if name not in env}
            if len(unknown) == 1:
                (name,) = unknown
                value = _solve(equation.expr, equation.value, env)
                if value is not None:
                    _check_range(name, value, kernel, equation.tensor, least)
                    env[name], origin[name] = value, f"axis {equation.axis} of `{equation.tensor}`"
                    progress = True
                    continue
            if unknown:
                unsolved.append(equation)
        pending = unsolved
    for slot in manifest.abi:
        if slot.kind in ("dim", "stride") and slot.name not in env:
            raise LaunchError(
                "E0906", f"no tensor determines `{slot.name}`", kernel=kernel, argument=slot.name, required="a value in `dims`"
            )
    for equation in equations:
        _check_equation(equation, env, origin, kernel, least)
    return env


def _read_directly(manifest: Manifest, views: Mapping[str, TensorView], scalars: Mapping[str, int]) -> dict[str, int] | None:
    """Fast path for most launches: every symbol is a whole extent or a scalar, and all extents agree. None if there is more to
    solve or something to refuse; the equations then give the full error."""
    env, expressions = dict(scalars), list[tuple[Expr, int]]()
    for spec in manifest.tensors:
        if spec.strides is not None:
            return None
        for expr, extent in zip(spec.dims, views[spec.name].shape, strict=True):
            if not 1 <= extent <= MAX_DIM:
                return None
            if expr.op == "sym":
                if env.setdefault(expr.name, extent) != extent:
                    return None
            else:
                expressions.append((expr, extent))
    try:
        if any(expr.evaluate(env) != extent for expr, extent in expressions):
            return None
    except (KeyError, ZeroDivisionError):
        return None
    return env if all(slot.name in env for slot in manifest.abi if slot.kind in ("dim", "stride")) else None


def _equations(manifest: Manifest, views: Mapping[str, TensorView]) -> Iterator[_Equation]:
    for spec in manifest.tensors:
        view = views[spec.name]
        for axis, (expr, extent) in enumerate(zip(spec.dims, view.shape, strict=True)):
            yield _Equation(expr, extent, spec.name, axis, "extent")
        for axis, (expr, stride) in enumerate(zip(spec.strides or (), view.strides, strict=False)):
            # The stride of an axis of extent 1 is never used, yet a symbol needs a value.
            if view.shape[axis] != 1 or expr.op == "sym":
                yield _Equation(expr, max(stride, 1) if view.shape[axis] == 1 else stride, spec.name, axis, "stride")


def _solve(expr: Expr, value: int, env: Mapping[str, int]) -> int | None:
    """The value of the only unknown of `expr` that makes it equal `value`; None if it cannot be inverted."""
    if expr.op == "sym":
        return value
    if expr.op not in ("+", "-", "*"):
        return None
    left, right = expr.args
    left_known = all(name in env for name in left.symbols())
    if not left_known and not all(name in env for name in right.symbols()):
        return None
    try:
        known = (left if left_known else right).evaluate(env)
    except ZeroDivisionError:
        return None
    if known.bit_length() > MAX_BITS:
        return None
    unknown = right if left_known else left
    if expr.op == "+":
        return _solve(unknown, value - known, env)
    if expr.op == "-":
        return _solve(unknown, known - value if left_known else value + known, env)
    if known == 0 or value % known:
        return None
    return _solve(unknown, value // known, env)


def _check_range(name: str, value: int, kernel: str, argument: str, least: int) -> None:
    if not least <= value <= MAX_DIM:
        raise LaunchError(
            "E0906",
            f"`{name}` is out of range",
            kernel=kernel,
            argument=argument,
            given=shown(value),
            required=f"{least} to {MAX_DIM}",
        )


def _check_equation(equation: _Equation, env: Mapping[str, int], origin: Mapping[str, str], kernel: str, least: int) -> None:
    if equation.kind == "stride":
        return  # strides have their own error, raised once every symbol is known
    try:
        evaluated = equation.expr.evaluate(env)
    except KeyError as missing:
        name = str(missing.args[0])
        raise LaunchError(
            "E0906", f"`{equation.expr}` does not determine `{name}`", kernel=kernel, argument=equation.tensor,
            given=f"extent {equation.value} on axis {equation.axis}", required=f"`{name}` in `dims`",
        ) from None  # fmt: skip
    except ZeroDivisionError:
        evaluated = None
    if evaluated is not None and evaluated.bit_length() > MAX_BITS:
        raise _too_large(equation.expr, kernel, "extent")
    if evaluated != equation.value:
        symbols = list(dict.fromkeys(equation.expr.symbols()))
        reasons = ", ".join(f"`{name}` = {env[name]} from {origin[name]}" for name in symbols if name in env)
        required = f"`{equation.expr}` = {evaluated}" if symbols else str(evaluated)
        raise LaunchError(
            "E0906", f"axis {equation.axis} has the wrong extent", kernel=kernel, argument=equation.tensor,
            given=str(equation.value), required=required + (f" ({reasons})" if reasons else ""),
        )  # fmt: skip
    _check_range(str(equation.expr), equation.value, kernel, equation.tensor, least)


def evaluate(expr: Expr, env: Mapping[str, int], kernel: str, what: str) -> int:
    """The value of a launch expression; `what` names it in messages. E0906 if a symbol has no value, E0910 for a zero divisor
    or a value outside every limit."""
    try:
        value = expr.evaluate(env)
    except KeyError as missing:
        message = f"{what} `{expr}` uses `{missing.args[0]}`, which no argument determines"
        raise LaunchError(
            "E0906", message, kernel=kernel, argument=str(missing.args[0]), required="a value in `dims`"
        ) from None
    except ZeroDivisionError:
        known = known_values(expr, env)
        raise LaunchError("E0910", f"{what} `{expr}` divides by zero", kernel=kernel, given=known) from None
    if value.bit_length() > MAX_BITS:
        raise _too_large(expr, kernel, what)
    return value


def known_values(expr: Expr, env: Mapping[str, int]) -> str:
    """The symbols of an expression with their values, for a message; one may be unknown if `and` or `or` short-circuited."""
    return ", ".join(f"{name} = {env.get(name, 'unknown')}" for name in dict.fromkeys(expr.symbols()))


def _too_large(expr: Expr, kernel: str, what: str) -> LaunchError:
    return LaunchError("E0910", f"{what} `{expr}` is larger than any number of a launch", kernel=kernel)
