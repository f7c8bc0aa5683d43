"""The launches of a step before the number of tokens is known: takes statements and variants, returns graphs of any length.

Conditions depend on a length only through variants, which are fixed beforehand (`tilec.step.reader`). A `Form` therefore has
the same operations and buffers for every length it covers: its graphs differ only in extents, scalars and constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from tilec.step.declaration import DTYPE, LENGTHS, PAST, TOKENS, Condition, Declared, Items, Launch, Statement
from tilec.step.expressions import Expression, StepError
from tilec.step.graph import Buffer, Constant, Op, StepGraph, View
from tilec.step.layers import LayerKinds

MAX_OPERATIONS: Final = 1 << 15
"""Maximum number of launches of a step, in all layers together."""
MAX_ITEMS: Final = 1 << 10
"""Maximum number of items of a loop in a layer, such as experts."""
MAX_ELEMENTS: Final = 1 << 48
"""Maximum number of elements of a buffer."""


@dataclass(frozen=True, slots=True)
class ResolvedOp:
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
        self, mode: str, resolved_ops: tuple[ResolvedOp, ...], values: Mapping[str, Any], tied: Callable[[Declared], str]
    ) -> None:
        self.mode, self.resolved_ops, self._values, self._tied = mode, resolved_ops, values, tied
        self._buffers: dict[str, Buffer] = {}  # buffers that do not depend on a length
        self._operations: dict[str, Op] = {}  # likewise, by name

    def only(self, resolved_ops: tuple[ResolvedOp, ...]) -> Form:
        """The form restricted to some of the operations."""
        return Form(self.mode, resolved_ops, self._values, self._tied)

    def at(self, tokens: int, past: int = 0) -> StepGraph:
        """The graph for `tokens` new tokens after `past` cached ones; StepError for an invalid extent."""
        values = {**self._values, TOKENS: tokens, PAST: past}
        graph = StepGraph(self.mode, tokens, sequences=tokens if self.mode == "batch" else 1)
        buffers, operations = graph.buffers, graph.ops
        declared_buffers: dict[int, Buffer] = {}
        launches: dict[int, _Evaluated] = {}
        for op in self.resolved_ops:
            for _, declared, name in op.tensors:
                if name not in buffers:
                    buffers[name] = self._buffers.get(name) or self._buffer(declared, name, values, declared_buffers)
            operations.append(self._operations.get(op.name) or self._operation(op, values, buffers, launches))
        return graph

    def _buffer(self, declared: Declared, name: str, values: Mapping[str, Any], declared_buffers: dict[int, Buffer]) -> Buffer:
        """The buffer of a declaration; `declared_buffers` caches the corresponding buffers of other layers."""
        shared = declared_buffers.get(id(declared))
        if shared is None:
            facts = {name: value.value(values) for name, value in declared.facts.items()}
            dtype = values[DTYPE] if declared.dtype == DTYPE else declared.dtype
            shared = declared_buffers[id(declared)] = Buffer(name, dtype, shape_of(declared, values), declared.kind, **facts)
        buffer = shared
        if name != shared.name:
            facts = shared.low, shared.high, shared.distinct, shared.distinct_in_rows
            buffer = Buffer(name, shared.dtype, shared.shape, shared.kind, *facts)
        if not _depends([*declared.shape, *declared.facts.values(), *(axis for row in declared.rows.values() for axis in row)]):
            self._buffers[name] = buffer
        return buffer

    def _operation(
        self, entry: ResolvedOp, values: Mapping[str, Any], buffers: Mapping[str, Buffer], launches: dict[int, _Evaluated]
    ) -> Op:
        """One operation; `launches` caches the evaluated launches of other layers."""
        launch = entry.launch
        evaluated = launches.get(id(launch))
        if evaluated is None:
            evaluated = launches[id(launch)] = _evaluated(entry, values, buffers)
        tensors = {
            parameter: View(name, shape) for (parameter, _, name), shape in zip(entry.tensors, evaluated.shapes, strict=True)
        }
        op = Op(entry.name, launch.kernel, evaluated.constants, tensors, evaluated.scalars, launch.overlaps)
        axes = [axis for reference in launch.tensors.values() for axis in reference.shape or ()]
        if not _depends([*axes, *launch.constants.values(), *launch.scalars.values()]) and all(
            name in self._buffers for _, _, name in entry.tensors
        ):
            self._operations[entry.name] = op
        return op


def _depends(expressions: Iterable[Expression]) -> bool:
    """Whether any of the expressions depends on a length."""
    return any(expression.names & LENGTHS for expression in expressions)


def resolved_ops(
    statements: tuple[Statement, ...], values: dict[str, Any], layers: Callable[[], LayerKinds], tied: Callable[[Declared], str]
) -> tuple[ResolvedOp, ...]:
    """The operations of statements in order; `values` contains everything except lengths, and what layers have. StepError for
    a launch that uses what its layer lacks."""
    ops: list[ResolvedOp] = []

    def walk(inner: tuple[Statement, ...], prefix: str, layer: int | None, item: int) -> None:
        for statement in inner:
            if len(ops) >= MAX_OPERATIONS:
                raise StepError(f"a step has more than {MAX_OPERATIONS} launches")
            if isinstance(statement, Launch):
                ops.append(resolve(statement, prefix, layer, item))
            elif isinstance(statement, Condition):
                walk(statement.then if statement.test.value(values) else statement.otherwise, prefix, layer, item)
            elif isinstance(statement, Items):
                for number in range(item_count(statement.count, values, statement.node)):
                    walk(statement.body, f"{prefix}{statement.item}.{number}.", layer, number)
            else:
                kinds, outside = layers(), dict(values)
                for number in range(kinds.count):
                    values.update(kinds.flags(number))
                    walk(statement.body, f"layers.{number}.", number, 0)
                values.update(outside)

    def resolve(entry: Launch, prefix: str, layer: int | None, item: int) -> ResolvedOp:
        tensors: list[tuple[str, Declared, str]] = []
        for parameter, reference in entry.tensors.items():
            declared = reference.declared
            at = layer if layer is not None else layers().count if declared.per_layer else 0  # so `previous` is the last
            at -= reference.previous
            if declared.only is not None and not layers().has(declared, at):
                raise StepError(f"`{entry.name}` uses `{declared.name}`, and layer {at} has none", entry.node)
            tensors.append((parameter, declared, in_layer(tied(declared), at, item)))
        return ResolvedOp(f"{prefix}{entry.name}", entry, tuple(tensors))

    walk(statements, "", None, 0)
    return tuple(ops)


def item_count(name: str, values: Mapping[str, Any], node: Any = None) -> int:
    """The number of items of a loop in a layer; StepError if the model does not define it."""
    count = values.get(name)
    if type(count) is not int or not 0 <= count <= MAX_ITEMS:
        raise StepError(f"`{name}` is not a number of items from 0 to {MAX_ITEMS}", node)
    return count


def _evaluated(entry: ResolvedOp, values: Mapping[str, Any], buffers: Mapping[str, Buffer]) -> _Evaluated:
    launch = entry.launch
    references = launch.tensors.values()
    return _Evaluated(
        {name: value.value(values) for name, value in launch.constants.items()},
        {name: value.value(values) for name, value in launch.scalars.items()},
        tuple([
            buffers[name].shape if reference.shape is None else shape_at(reference.shape, values)
            for reference, (_, _, name) in zip(references, entry.tensors, strict=True)
        ]),
    )  # fmt: skip


def shape_at(shape: tuple[Expression, ...], values: Mapping[str, Any]) -> tuple[int, ...]:
    """The extents; StepError if they are not valid for a tensor."""
    extents = tuple([axis.value(values) for axis in shape])
    if any(type(size) is not int or size < 1 for size in extents) or prod(extents) > MAX_ELEMENTS:
        raise StepError(f"the shape {list(extents)} is none of a tensor", shape[0].node)
    return extents


def shape_of(declared: Declared, values: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of a buffer or weight, which is the same in every layer."""
    if declared.shape:
        return shape_at(declared.shape, values)
    rows = tuple((name, shape_at(shape, values)) for name, shape in declared.rows.items())
    return stacked(declared, merged(rows, declared.axis), values)


def stacked(declared: Declared, shape: tuple[int, ...], values: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of a weight whose item has `shape`: the items come first. StepError for a number of items that is none."""
    if not declared.items:
        return shape
    count = item_count(declared.items, values, _location(declared))
    if not 1 <= count * prod(shape) <= MAX_ELEMENTS:
        raise StepError(f"`{declared.name}` has {count} items, which are no tensor", _location(declared))
    return (count, *shape)


def _location(declared: Declared) -> Any:
    """The location of a weight in the text."""
    return next(iter(declared.rows.values()))[0].node


def merged(rows: tuple[tuple[str, tuple[int, ...]], ...], axis: int) -> tuple[int, ...]:
    """The shape of tensors concatenated along an axis; StepError if their other extents differ."""
    (_, first), *others = rows
    if any(shape[:axis] + shape[axis + 1 :] != first[:axis] + first[axis + 1 :] for _, shape in others):
        raise StepError(f"the rows of `{rows[0][0]}` and those next to it are not as long")
    return (*first[:axis], sum(shape[axis] for _, shape in rows), *first[axis + 1 :])


def in_layer(name: str, layer: int, item: int = 0) -> str:
    """The full name of a declaration with `*` for a layer, and for an item of a loop in it."""
    return name.replace("*", str(layer), 1).replace("*", str(item)) if "*" in name else name
