"""Arguments and results of an op. In: a kernel's interface. Out: the arguments of a call, and from these the values of dims and
constants and the shapes of results.

Values are inferred from tensors in the order of the parameters. An axis that is a single name gives that name its extent. An
axis such as `R + 1` is solved for the name if no axis consists of the name alone. An `Element` dtype gives the `Element` its
value. Conflicts between extents are not diagnosed here but by the launch contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tilec.artifact.records import OF_RANKS
from tilec.frontend import Declared, Interface
from tilec.ir.expr import OPERATORS, Expr
from tilec.ir.types import DTYPES
from tilec.runtime import LaunchError
from tilec.runtime.errors import shown
from tilec.runtime.scalars import exact_integer

Value = int | float | bool | str
Values = Mapping[str, Any]
Choice = Mapping[str, Any] | Callable[[dict[str, Any]], Mapping[str, Any]] | None
"""Values by name, or a function that computes them from the known values (dims by name, dtypes by the name of their
`Element`)."""
MUTATED: Final = ("inout", "atomic")


class Known(dict[str, Any]):
    """The values that a function of the author gets; E0919 for a name that is not among them, such as that of a float: calls
    that differ in floats alone share one launch."""

    def __init__(self, kernel: str, what: str, values: Values, floats: Iterable[str] = ()) -> None:
        super().__init__(values)
        self._kernel, self._what, self._floats = kernel, what, tuple(floats)

    def __missing__(self, name: Any) -> Any:
        if name in self._floats:
            message = f"`{self._what}` asks for `{name}`, a float, which decides neither constants nor extents"
            raise refuse(self._kernel, message, required="an integer or a bool, or an op for each choice")
        existing = ", ".join(f"`{known}`" for known in self) or "none"
        raise refuse(
            self._kernel, f"`{self._what}` asks for `{shown_name(name)}`, which no argument determines", required=existing
        )


def shown_name(name: Any) -> str:
    """A name that the author gave, for a message; it may be of any type."""
    return name[:80] if isinstance(name, str) else shown(name, 80)


def refuse(kernel: str, message: str, *, argument: str = "", given: str = "", required: str = "") -> LaunchError:
    """The error for an op whose declaration or call fits no kernel."""
    return LaunchError("E0919", message, kernel=kernel, argument=argument, given=given, required=required)


@dataclass(frozen=True, slots=True)
class Declaration:
    """An op of a kernel. A call takes `arguments` and returns `outputs`; `scratch` is allocated and discarded; `mutated` names
    the tensor arguments that are written."""

    interface: Interface
    arguments: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    scratch: tuple[Declared, ...]
    mutated: frozenset[str]
    constants: Choice
    dims: Choice

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return self.interface.kernel

    @property
    def tensors(self) -> tuple[Declared, ...]:
        """All tensors of the kernel, in the order of its parameters."""
        return tuple(parameter for parameter in self.interface.parameters if parameter.access)

    @property
    def floats(self) -> tuple[Declared, ...]:
        """Scalars of a floating dtype, in the order of the parameters."""
        return tuple(
            parameter for parameter in self.interface.parameters if not parameter.access and DTYPES[parameter.dtype].is_float
        )

    def known(self, tensors: Mapping[str, tuple[str, tuple[Any, ...]]], scalars: Values) -> dict[str, Any]:
        """Values by name, from the dtype and shape of each tensor argument and from integers; extents may be symbolic. E0905
        for a wrong rank, E0904 if two tensors disagree about an `Element`."""
        values: dict[str, Any] = {}
        origin: dict[str, str] = {}
        for argument in self.arguments:
            if not argument.access:
                if not DTYPES[argument.dtype].is_float:
                    values[argument.name] = scalars[argument.name]
                continue
            dtype, shape = tensors[argument.name]
            if len(shape) != len(argument.dims):
                required = f"rank {len(argument.dims)}, [{', '.join(map(str, argument.dims))}]"
                raise LaunchError(
                    "E0905", "wrong rank", kernel=self.kernel, argument=argument.name,
                    given=f"rank {len(shape)}, {list(shape)}", required=required,
                )  # fmt: skip
            expected = argument.dtype if argument.dtype in DTYPES else values.setdefault(argument.dtype, dtype)
            if dtype != expected:
                reason = f", as `{argument.dtype}` is of `{origin[argument.dtype]}`" if argument.dtype in origin else ""
                raise LaunchError(
                    "E0904", "wrong element type", kernel=self.kernel, argument=argument.name, given=f"`{dtype}`",
                    required=f"`{expected}`{reason}",
                )  # fmt: skip
            origin.setdefault(argument.dtype, argument.name)
            for dim, extent in zip(argument.dims, shape, strict=True):
                if dim.op == "sym":
                    values.setdefault(dim.name, extent)
        self._derive(tensors, values)
        return values | self.chosen("dims", self.dims, values)

    def _derive(self, tensors: Mapping[str, tuple[str, tuple[Any, ...]]], inferred: dict[str, Any]) -> None:
        """Adds values solved from extents such as `R + 1`, for names that are no axis by themselves."""
        constants = {} if callable(self.constants) else self.chosen("constants", self.constants, inferred)
        for argument in self.arguments:
            for dim, extent in zip(argument.dims, tensors[argument.name][1] if argument.access else (), strict=True):
                with suppress(ZeroDivisionError):  # such an extent determines nothing
                    solution = solved(dim, extent, constants | inferred)
                    if solution is not None:
                        inferred[solution[0]] = solution[1]

    def specialisation(self, known: Values) -> dict[str, Value]:
        """A value for each constant of the kernel; E0919 if one has no value."""
        chosen = self.chosen("constants", self.constants, known)
        values: dict[str, Value] = {}
        for name in self.interface.constants:
            if name not in chosen and name not in known:
                raise refuse(
                    self.kernel, f"the constant `{name}` has no value",
                    required=f"`constants={{\"{name}\": ...}}` where the op is made",
                )  # fmt: skip
            values[name] = chosen[name] if name in chosen else known[name]
        return values

    def shapes(self, requested: Iterable[Declared], known: Values) -> list[tuple[str, tuple[Any, ...]]]:
        """Dtype and shape of each of `requested`; E0919 if an extent cannot be determined."""
        values = dict(known) | self.chosen("constants", self.constants, known)
        result: list[tuple[str, tuple[Any, ...]]] = []
        for tensor in requested:
            try:
                shape = tuple(evaluate(dim, values) for dim in tensor.dims)
                result.append((tensor.dtype if tensor.dtype in DTYPES else str(values[tensor.dtype]), shape))
            except KeyError as missing:
                name = str(missing.args[0])
                value = 'constants={"%s": "bf16"}' if name == tensor.dtype else 'dims=lambda known: {"%s": ...}'
                raise refuse(
                    self.kernel, f"no argument determines `{name}`", argument=tensor.name,
                    required=f"`{value % name}` where the op is made, or `mutates=[\"{tensor.name}\"]`",
                ) from None  # fmt: skip
            except ZeroDivisionError:
                given = ", ".join(f"{name} = {values[name]}" for dim in tensor.dims for name in dim.symbols() if name in values)
                message = "an extent divides by zero"
                raise LaunchError("E0910", message, kernel=self.kernel, argument=tensor.name, given=given) from None
        return result

    def chosen(self, what: str, choice: Choice, known: Values) -> dict[str, Any]:
        """The values of `constants` or `dims`, of which `what` is the name; E0919 if one is of no use."""
        if choice is None:
            return {}
        floats = (parameter.name for parameter in self.floats)
        computed: Any = choice(Known(self.kernel, what, known, floats)) if callable(choice) else choice
        if not isinstance(computed, Mapping):
            raise refuse(
                self.kernel, f"`{what}` does not return a dict of values", given=f"a value of type `{type(computed).__name__}`"
            )
        values: dict[str, Any] = dict(computed)  # pyright: ignore[reportUnknownArgumentType]
        check = self._checked_constant if what == "constants" else self._checked_dim
        return {name: check(name, value) for name, value in values.items()}

    def _checked_constant(self, name: Any, value: Any) -> Any:
        """The value of a constant; E0919 if the kernel has none of that name, or it takes no such value."""
        if name not in self.interface.constants:
            existing = ", ".join(f"`{constant}`" for constant in self.interface.constants) or "none"
            raise refuse(self.kernel, f"there is no constant `{shown_name(name)}`", required=existing)
        elements = {parameter.dtype for parameter in self.tensors}
        if name in elements and not (isinstance(value, str) and value in DTYPES):
            message = f"`constants` give `{name}` an unknown dtype"
            raise refuse(self.kernel, message, given=f"`{shown_name(value)}`", required=f"one of {', '.join(DTYPES)}, by name")
        if isinstance(value, (int, float, str)):
            return value
        return self._integer("constants", name, value, "a number, a bool, or a dtype by name")

    def _checked_dim(self, name: Any, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(name, str):
            raise refuse(self.kernel, f"`dims` gives `{shown_name(name)}` no extent", given=shown(value), required="an integer")
        return self._integer("dims", name, value, 'an integer, such as `known["I2"] // 2`')

    def _integer(self, what: str, name: str, value: Any, required: str) -> Any:
        """An integer of any kind as Python's; a symbolic one of PyTorch as it is."""
        if hasattr(value, "node"):
            return value
        try:
            return exact_integer(value)
        except TypeError:
            given = f"{shown(value)} of type `{type(value).__name__}`"
            raise refuse(self.kernel, f"`{what}` gives `{name}` no usable value", given=given, required=required) from None


def solved(dim: Expr, extent: Any, values: Values) -> tuple[str, Any] | None:
    """The unknown name in an extent and its value, if the name occurs once below sums, differences and products. The launch
    contract rejects a division with remainder."""
    if dim.op == "sym":
        return (dim.name, extent) if dim.name not in values else None
    unknown = [{*arg.symbols()} - values.keys() for arg in dim.args]
    if dim.op not in ("+", "-", "*") or all(unknown) or not any(unknown):
        return None
    unknown_side = 0 if unknown[0] else 1
    other = evaluate(dim.args[1 - unknown_side], values)
    if dim.op == "*":
        return solved(dim.args[unknown_side], extent // other, values) if other != 0 else None
    if dim.op == "+":
        return solved(dim.args[unknown_side], extent - other, values)
    return solved(dim.args[unknown_side], extent + other if unknown_side == 0 else other - extent, values)


def evaluate(dim: Expr, values: Values) -> Any:
    """The value of an extent; values may be PyTorch's symbolic integers, which `Expr.evaluate` would convert to numbers."""
    if dim.op == "const":
        return dim.value
    if dim.op == "sym":
        return values[dim.name]
    left, right = (evaluate(arg, values) for arg in dim.args)
    return OPERATORS[dim.op](left, right)


def declare(interface: Interface, mutates: Iterable[str], constants: Choice, dims: Choice) -> Declaration:
    """An op of a kernel; `mutates` names the `Out` tensors that a call receives as arguments. E0919 if there is no such tensor,
    or no tensor among the arguments, or the kernel meets other ranks."""
    if any(parameter.access in OF_RANKS for parameter in interface.parameters):
        raise refuse(interface.kernel, "the kernel meets other ranks, so no process can call it alone")
    mutated = frozenset(mutates)
    out_names = {parameter.name for parameter in interface.parameters if parameter.access == "out"}
    for name in sorted(mutated - out_names, key=str):
        existing = ", ".join(f"`{out_name}`" for out_name in sorted(out_names)) or "none"
        raise refuse(interface.kernel, f"`mutates` names `{shown_name(name)}`, which is not an `Out` tensor", required=existing)
    arguments = tuple(
        parameter
        for parameter in interface.parameters
        if parameter.access not in ("out", "scratch") or parameter.name in mutated
    )
    if not any(parameter.access for parameter in arguments):
        raise refuse(interface.kernel, "no argument is a tensor", required="`mutates` with an `Out` tensor")
    declaration = Declaration(
        interface,
        arguments,
        tuple(parameter for parameter in interface.parameters if parameter.access == "out" and parameter.name not in mutated),
        tuple(parameter for parameter in interface.parameters if parameter.access == "scratch"),
        mutated | {parameter.name for parameter in arguments if parameter.access in MUTATED},
        constants,
        dims,
    )
    for what, choice in (("constants", constants), ("dims", dims)):
        if not callable(choice):
            declaration.chosen(what, choice, {})  # so that a mistake is found where the op is made
    return declaration
