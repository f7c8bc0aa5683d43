"""The launches of a step before the number of tokens is known: takes statements and flags, returns graphs of any length.

Conditions depend on a length only through `few`, which is fixed beforehand (`tilec.step.reader`). A `Form` therefore has the
same operations and buffers for every length it covers: its graphs differ only in extents, scalars and constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from tilec.step.expressions import Expression, StepError
from tilec.step.graph import Buffer, Constant, Kind, Op, StepGraph, View
from tilec.step.reader import DTYPE, LENGTHS, Condition, Declared, Launch, Statement

MAX_OPERATIONS: Final = 1 << 15
"""Maximum number of launches of a step, in all layers together."""
MAX_ELEMENTS: Final = 1 << 48
"""Maximum number of elements of a buffer."""


@dataclass(frozen=True, slots=True)
class Placed:
    """An operation: its name, its launch in the text, and for each tensor the parameter, its declaration, and the buffer's
    name."""

    name: str
    launch: Launch
    tensors: tuple[tuple[str, Declared, str], ...]


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """A launch evaluated for one set of values; the same in every layer. `shapes` are those of its tensors, in order."""

    constants: dict[str, Constant]
    scalars: dict[str, int | float]
    shapes: tuple[tuple[int, ...], ...]


class Form:
    """Operations of `mode` in order, and their values except lengths. `tied` maps a declaration to the name of the weight that
    stores it."""

    def __init__(
        self, mode: str, placed: tuple[Placed, ...], values: Mapping[str, Any], tied: Callable[[Declared], str]
    ) -> None:
        self.mode, self.placed, self._values, self._tied = mode, placed, values, tied
        self._buffers: dict[str, Buffer] = {}  # buffers that do not depend on a length
        self._operations: dict[str, Op] = {}  # likewise, by name

    def only(self, placed: tuple[Placed, ...]) -> Form:
        """The form restricted to some of the operations."""
        return Form(self.mode, placed, self._values, self._tied)

    def at(self, tokens: int, past: int = 0) -> StepGraph:
        """The graph for `tokens` new tokens after `past` cached ones; StepError for an invalid extent."""
        values = {**self._values, "tokens": tokens, "past": past}
        graph = StepGraph(self.mode, tokens, sequences=tokens if self.mode == "batch" else 1)
        buffers, operations = graph.buffers, graph.ops
        likes: dict[int, Buffer] = {}
        launches: dict[int, _Evaluated] = {}
        for one in self.placed:
            for _, declared, name in one.tensors:
                if name not in buffers:
                    buffers[name] = self._buffers.get(name) or self._buffer(declared, name, values, likes)
            operations.append(self._operations.get(one.name) or self._operation(one, values, buffers, launches))
        return graph

    def _buffer(self, declared: Declared, name: str, values: Mapping[str, Any], likes: dict[int, Buffer]) -> Buffer:
        """The buffer of a declaration; `likes` caches the corresponding buffers of other layers."""
        like = likes.get(id(declared))
        if like is None:
            facts = {name: value.value(values) for name, value in declared.facts.items()}
            dtype = values[DTYPE] if declared.dtype == DTYPE else declared.dtype
            like = likes[id(declared)] = Buffer(name, dtype, shape_of(declared, values), declared.kind, **facts)
        made = like
        if name != like.name:
            made = Buffer(name, like.dtype, like.shape, like.kind, like.low, like.high, like.distinct)
        if not _depends([*declared.shape, *declared.facts.values(), *(axis for row in declared.rows.values() for axis in row)]):
            self._buffers[name] = made
        return made

    def _operation(
        self, one: Placed, values: Mapping[str, Any], buffers: Mapping[str, Buffer], launches: dict[int, _Evaluated]
    ) -> Op:
        """One operation; `launches` caches the evaluated launches of other layers."""
        launch = one.launch
        found = launches.get(id(launch))
        if found is None:
            found = launches[id(launch)] = _evaluated(one, values, buffers)
        tensors = {parameter: View(name, shape) for (parameter, _, name), shape in zip(one.tensors, found.shapes, strict=True)}
        made = Op(one.name, launch.kernel, found.constants, tensors, found.scalars)
        given = [axis for reference in launch.tensors.values() for axis in reference.shape or ()]
        if not _depends([*given, *launch.constants.values(), *launch.scalars.values()]) and all(
            name in self._buffers for _, _, name in one.tensors
        ):
            self._operations[one.name] = made
        return made


def _depends(expressions: Iterable[Expression]) -> bool:
    """Whether any of the expressions depends on a length."""
    return any(one.names & LENGTHS for one in expressions)


def placed(
    statements: tuple[Statement, ...], values: dict[str, Any], layers: Callable[[], int], tied: Callable[[Declared], str]
) -> tuple[Placed, ...]:
    """The operations of statements in order; `values` contains everything except lengths."""
    found: list[Placed] = []

    def run(inner: tuple[Statement, ...], layer: int | None) -> None:
        for one in inner:
            if len(found) >= MAX_OPERATIONS:
                raise StepError(f"a step has more than {MAX_OPERATIONS} launches")
            if isinstance(one, Launch):
                found.append(place(one, layer))
            elif isinstance(one, Condition):
                run(one.then if one.test.value(values) else one.otherwise, layer)
            else:
                count = layers()
                for number in range(count):
                    values.update(first_layer=number == 0, last_layer=number == count - 1)
                    run(one.body, number)

    def place(one: Launch, layer: int | None) -> Placed:
        tensors: list[tuple[str, Declared, str]] = []
        for parameter, reference in one.tensors.items():
            declared = reference.declared
            here = layer if layer is not None else layers() if declared.per_layer else 0  # so `previous` is the last
            tensors.append((parameter, declared, in_layer(tied(declared), here - reference.previous)))
        return Placed(one.name if layer is None else f"layers.{layer}.{one.name}", one, tuple(tensors))

    run(statements, None)
    return tuple(found)


def _evaluated(one: Placed, values: Mapping[str, Any], buffers: Mapping[str, Buffer]) -> _Evaluated:
    launch = one.launch
    references = launch.tensors.values()
    return _Evaluated(
        {name: value.value(values) for name, value in launch.constants.items()},
        {name: value.value(values) for name, value in launch.scalars.items()},
        tuple([
            buffers[name].shape if reference.shape is None else shape_at(reference.shape, values)
            for reference, (_, _, name) in zip(references, one.tensors, strict=True)
        ]),
    )  # fmt: skip


def shape_at(shape: tuple[Expression, ...], values: Mapping[str, Any]) -> tuple[int, ...]:
    """The extents; StepError if they are not valid for a tensor."""
    found = tuple([axis.value(values) for axis in shape])
    if any(type(extent) is not int or extent < 1 for extent in found) or prod(found) > MAX_ELEMENTS:
        raise StepError(f"the shape {list(found)} is none of a tensor", shape[0].node)
    return found


def shape_of(declared: Declared, values: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of a buffer or weight, which is the same in every layer."""
    if declared.kind is not Kind.WEIGHT:
        return shape_at(declared.shape, values)
    return merged(tuple((name, shape_at(shape, values)) for name, shape in declared.rows.items()))


def merged(rows: tuple[tuple[str, tuple[int, ...]], ...]) -> tuple[int, ...]:
    """The shape of tensors concatenated by rows; StepError if their other extents differ."""
    (_, first), *others = rows
    if any(shape[1:] != first[1:] for _, shape in others):
        raise StepError(f"the rows of `{rows[0][0]}` and those beside it are not as long")
    return (sum(shape[0] for _, shape in rows), *first[1:])


def in_layer(name: str, layer: int) -> str:
    """The full name of a declaration with `*` for a layer."""
    return name.replace("*", str(layer)) if "*" in name else name
