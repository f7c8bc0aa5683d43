"""Arguments and results of an op. In: a kernel's interface. Out: the arguments of a call, and from these the values of dims and
constants and the shapes of results.

Values are inferred from tensors in the order of the parameters. An axis that is a single name gives that name its extent. An
axis such as `R + 1` is solved for the name if no axis consists of the name alone. An `Element` dtype gives the `Element` its
value. Conflicts between extents are not diagnosed here but by the launch contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tilec.frontend import Declared, Interface
from tilec.ir.expr import OPERATORS, Expr
from tilec.ir.types import DTYPES
from tilec.runtime import LaunchError

Value = int | float | bool | str
Values = Mapping[str, Any]
Choice = Mapping[str, Any] | Callable[[dict[str, Any]], Mapping[str, Any]] | None
"""Values by name, or a function that computes them from the known values (dims by name, dtypes by the name of their
`Element`)."""
MUTATED: Final = ("inout", "atomic")


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
        return tuple(one for one in self.interface.parameters if one.access)

    @property
    def floats(self) -> tuple[Declared, ...]:
        """Scalars of a floating dtype, in the order of the parameters."""
        return tuple(one for one in self.interface.parameters if not one.access and DTYPES[one.dtype].is_float)

    def known(self, tensors: Mapping[str, tuple[str, tuple[Any, ...]]], scalars: Values) -> dict[str, Any]:
        """Values by name, from the dtype and shape of each tensor argument and from scalars; extents may be symbolic. E0905 for
        a wrong rank, E0904 if two tensors disagree about an `Element`."""
        found: dict[str, Any] = {}
        origin: dict[str, str] = {}
        for one in self.arguments:
            if not one.access:
                found[one.name] = scalars[one.name]
                continue
            dtype, shape = tensors[one.name]
            if len(shape) != len(one.dims):
                required = f"rank {len(one.dims)}, [{', '.join(map(str, one.dims))}]"
                raise LaunchError(
                    "E0905", "wrong rank", kernel=self.kernel, argument=one.name, given=f"rank {len(shape)}, {list(shape)}",
                    required=required,
                )  # fmt: skip
            wanted = one.dtype if one.dtype in DTYPES else found.setdefault(one.dtype, dtype)
            if dtype != wanted:
                why = f", as `{one.dtype}` is of `{origin[one.dtype]}`" if one.dtype in origin else ""
                raise LaunchError(
                    "E0904", "wrong element type", kernel=self.kernel, argument=one.name, given=f"`{dtype}`",
                    required=f"`{wanted}`{why}",
                )  # fmt: skip
            origin.setdefault(one.dtype, one.name)
            for dim, extent in zip(one.dims, shape, strict=True):
                if dim.op == "sym":
                    found.setdefault(dim.name, extent)
        self._derive(tensors, found)
        return found | self._chosen("dims", self.dims, found)

    def _derive(self, tensors: Mapping[str, tuple[str, tuple[Any, ...]]], found: dict[str, Any]) -> None:
        """Adds values solved from extents such as `R + 1`, for names that are no axis by themselves."""
        given = {} if callable(self.constants) else self._chosen("constants", self.constants, found)
        for one in self.arguments:
            for dim, extent in zip(one.dims, tensors[one.name][1] if one.access else (), strict=True):
                solution = solved(dim, extent, given | found)
                if solution is not None:
                    found[solution[0]] = solution[1]

    def specialisation(self, known: Values) -> dict[str, Value]:
        """A value for each constant of the kernel; E0919 if one has no value."""
        chosen = self._chosen("constants", self.constants, known)
        for name in chosen:
            if name not in self.interface.constants:
                own = ", ".join(f"`{one}`" for one in self.interface.constants) or "none"
                raise refuse(self.kernel, f"there is no constant `{name:.80}`", required=own)
        found: dict[str, Value] = {}
        for name in self.interface.constants:
            if name not in chosen and name not in known:
                raise refuse(
                    self.kernel, f"nothing says what the constant `{name}` is",
                    required=f"`constants={{\"{name}\": ...}}` where the op is made",
                )  # fmt: skip
            found[name] = chosen[name] if name in chosen else known[name]
        return found

    def shapes(self, which: Iterable[Declared], known: Values) -> list[tuple[str, tuple[Any, ...]]]:
        """Dtype and shape of each of `which`; E0919 if an extent cannot be determined."""
        values = dict(known) | self._chosen("constants", self.constants, known)
        found: list[tuple[str, tuple[Any, ...]]] = []
        for one in which:
            try:
                shape = tuple(evaluate(dim, values) for dim in one.dims)
                found.append((one.dtype if one.dtype in DTYPES else str(values[one.dtype]), shape))
            except KeyError as missing:
                name = str(missing.args[0])
                raise refuse(
                    self.kernel, f"no argument says what `{name}` is", argument=one.name,
                    required=f"`dims=lambda known: {{\"{name}\": ...}}` where the op is made, or `mutates=[\"{one.name}\"]`",
                ) from None  # fmt: skip
        return found

    def _chosen(self, what: str, choice: Choice, known: Values) -> dict[str, Any]:
        if choice is None:
            return {}
        made: Any = choice(dict(known)) if callable(choice) else choice
        if not isinstance(made, Mapping):
            raise refuse(self.kernel, f"`{what}` gives no values by name", given=f"a value of type `{type(made).__name__}`")
        return dict(made)  # pyright: ignore[reportUnknownArgumentType]


def solved(dim: Expr, extent: Any, values: Values) -> tuple[str, Any] | None:
    """The unknown name in an extent and its value, if the name occurs once below sums, differences and products. The launch
    contract rejects a division with remainder."""
    if dim.op == "sym":
        return (dim.name, extent) if dim.name not in values else None
    unknown = [{*arg.symbols()} - values.keys() for arg in dim.args]
    if dim.op not in ("+", "-", "*") or all(unknown) or not any(unknown):
        return None
    place = 0 if unknown[0] else 1
    other = evaluate(dim.args[1 - place], values)
    if dim.op == "*":
        return solved(dim.args[place], extent // other, values) if other != 0 else None
    if dim.op == "+":
        return solved(dim.args[place], extent - other, values)
    return solved(dim.args[place], extent + other if place == 0 else other - extent, values)


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
    or no tensor among the arguments."""
    given = frozenset(mutates)
    outs = {one.name for one in interface.parameters if one.access == "out"}
    for name in sorted(given - outs):
        own = ", ".join(f"`{one}`" for one in sorted(outs)) or "none"
        raise refuse(interface.kernel, f"`mutates` names `{name:.80}`, which is no `Out` tensor", required=own)
    arguments = tuple(one for one in interface.parameters if one.access not in ("out", "scratch") or one.name in given)
    if not any(one.access for one in arguments):
        raise refuse(interface.kernel, "no argument is a tensor", required="`mutates` with an `Out` tensor")
    return Declaration(
        interface,
        arguments,
        tuple(one for one in interface.parameters if one.access == "out" and one.name not in given),
        tuple(one for one in interface.parameters if one.access == "scratch"),
        given | {one.name for one in arguments if one.access in MUTATED},
        constants,
        dims,
    )
