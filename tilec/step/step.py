"""A step of a model: a declaration and the model's numbers in; graphs, weights and what the build must make out.

What holds: graphs and requests come from the same statements at the same values, so that a bundle has what its step asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final, Literal

from tilec.step.expressions import Expression, StepError
from tilec.step.graph import Buffer, Constant, Kind, Op, StepGraph, View
from tilec.step.reader import DTYPE, Condition, Declaration, Declared, Launch, Reference, Statement

Head = Literal["argmax", "sample", "logits", "none"]
"""How a step ends: with the most likely token, one drawn by chance, the logits, or nothing but the filled cache."""

HEADS: Final[tuple[Head, ...]] = ("argmax", "sample", "logits", "none")
Mode = Literal["decode", "prefill", "batch"]
"""What a step takes in: the next token of a sequence, tokens of a prompt, or the next token of each of several sequences."""

BATCHES: Final = (2, 4, 8)
"""Sequences of a batch: they divide the eight columns that tensor cores multiply by."""

DTYPES: Final = ("bf16", "f16")
"""Dtypes that a model runs in."""

CHUNK_TOKENS: Final = 2048
"""Tokens of a prefill step at most: enough for matrix products to be bound by arithmetic, few enough for small activations."""

ALL_KINDS: Final = 3
"""Layers of which one is the first, one the last and one neither."""

ALL_PAIRS: Final = 4
"""Layers that have every pair of neighbours: the first and a middle one, two middle ones, a middle one and the last."""

MAX_LAYERS: Final = 1 << 12
MAX_ELEMENTS: Final = 1 << 48
"""Of a buffer."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor on the device and the tensors of the checkpoint that are its rows, in order; all by full names."""

    name: str
    shape: tuple[int, ...]
    rows: tuple[tuple[str, tuple[int, ...]], ...]


class Step:
    """The step of one model: `numbers` are the model's, and measured ones; `chosen` are dtype and `max_seq_len`."""

    def __init__(
        self, declaration: Declaration, numbers: Mapping[str, Any], *, tied: bool, dtype: str, max_seq_len: int
    ) -> None:
        self.declaration, self.dtype, self.tied = declaration, dtype, tied
        self._values: dict[str, Any] = {**numbers, "dtype": dtype, "max_seq_len": max_seq_len}
        for name, number in declaration.numbers:
            self._values[name] = number.value(self._values)

    @property
    def layers(self) -> int:
        """How many there are; StepError where the model does not say."""
        found = self._values.get("num_hidden_layers")
        if type(found) is not int or not 1 <= found <= MAX_LAYERS:
            raise StepError("`num_hidden_layers` is not a number of layers")
        return found

    @property
    def short_slots(self) -> int:
        """Filled slots of a cache up to which the short form of a step is the faster one; 0 where nothing was measured. Either
        form is right for any number of slots."""
        found = self._values.get("short_slots", 0)
        if type(found) is not int or found < 0:
            raise StepError("`short_slots` is not a number of slots")
        return found

    def is_short(self, filled: int) -> bool:
        """Whether the short form is the one for caches of which `filled` slots at most are filled."""
        return filled <= self.short_slots

    def graph(
        self,
        mode: Mode,
        head: Head = "argmax",
        *,
        tokens: int = 1,
        past: int = 0,
        layers: int | None = None,
        short: bool = False,
    ) -> StepGraph:
        """The step that takes in `tokens` tokens, of a batch one of each sequence; `past` is how many the cache holds before a
        prefill. `layers` makes one of fewer layers: those that remain are the first, some of the middle, and the last. `short`
        makes the form for caches of which `short_slots` at most are filled. StepError where the text has no such step."""
        if mode not in self.declaration.modes:
            raise StepError(f"there is no `def {mode}()`")
        values = self.values(tokens=tokens, past=past, head=head, short=short)
        made = _Maker(self, StepGraph(mode, tokens, sequences=tokens if mode == "batch" else 1), values, layers)
        made.run(self.declaration.modes[mode], None)
        return made.graph

    def values(self, **given: Any) -> dict[str, Any]:
        """All values of a step, some of them given."""
        return self._values | given

    def has_layer(self, first: bool, last: bool) -> bool:
        """Whether one of the layers is the first and the last as said."""
        return (self.layers == 1) if first and last else self.layers > 1 if first or last else self.layers > 2

    def weights(self) -> Iterator[Weight]:
        """What a model needs on the device, in the order of the text; those of a layer are together."""
        pending: list[Declared] = []
        for declared in [*self.declaration.weights.values(), None]:
            if declared is not None and declared.per_layer:
                pending.append(declared)
                continue
            for layer in range(self.layers if pending else 0):
                yield from (self._weight(one, layer) for one in pending)
            pending = []
            if declared is not None and not (self.tied and declared.name in self.declaration.tied):
                yield self._weight(declared, 0)

    def name_of(self, declared: Declared) -> str:
        """The name of the weight that holds it: another's where the two are tied."""
        return self.declaration.tied.get(declared.name, declared.name) if self.tied else declared.name

    def _weight(self, declared: Declared, layer: int) -> Weight:
        rows = tuple((_named(name, layer), self.shape(shape, self._values)) for name, shape in declared.rows.items())
        return Weight(_named(declared.name, layer), merged(rows), rows)

    def axes(self, reference: Reference) -> tuple[Expression, ...]:
        """The extents of an argument that is no merged weight."""
        return reference.shape or reference.declared.shape

    def shape(self, shape: tuple[Expression, ...], values: Mapping[str, Any]) -> tuple[int, ...]:
        found = tuple(axis.value(values) for axis in shape)
        if any(type(extent) is not int or extent < 1 for extent in found) or prod(found) > MAX_ELEMENTS:
            raise StepError(f"the shape {list(found)} is none of a tensor", shape[0].node)
        return found

    def shape_of(self, declared: Declared, values: Mapping[str, Any]) -> tuple[int, ...]:
        """The shape of a buffer or weight, which is the same in every layer."""
        if declared.kind is not Kind.WEIGHT:
            return self.shape(declared.shape, values)
        return merged(tuple((name, self.shape(shape, values)) for name, shape in declared.rows.items()))


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """A launch at one set of values, the same in every layer. Tensors: parameter, what, whether of the layer before, shape."""

    constants: dict[str, Constant]
    scalars: dict[str, int | float]
    tensors: tuple[tuple[str, Declared, bool, tuple[int, ...]], ...]


class _Maker:
    """Makes one graph. What does not depend on the layer is evaluated once."""

    def __init__(self, step: Step, graph: StepGraph, values: dict[str, Any], layers: int | None) -> None:
        self.step, self.graph, self.values, self.fewer = step, graph, values, layers
        self.declared: dict[int, Buffer] = {}
        self.launches: dict[int, _Evaluated] = {}

    def run(self, statements: tuple[Statement, ...], layer: int | None) -> None:
        for one in statements:
            if isinstance(one, Launch):
                self.launch(one, layer)
            elif isinstance(one, Condition):
                self.run(one.then if one.test.value(self.values) else one.otherwise, layer)
            else:
                count = self.layers
                for number in range(count):
                    self.values |= {"first_layer": number == 0, "last_layer": number == count - 1}
                    self.run(one.body, number)

    @property
    def layers(self) -> int:
        return self.step.layers if self.fewer is None else self.fewer

    def launch(self, one: Launch, layer: int | None) -> None:
        found = self.launches.get(id(one))
        if found is None:
            found = self.launches[id(one)] = self.evaluated(one)
        tensors: dict[str, View] = {}
        for parameter, declared, previous, shape in found.tensors:
            here = layer if layer is not None else self.layers if declared.per_layer else 0  # `previous` is then the last
            tensors[parameter] = View(self.buffer(declared, here - previous), shape)
        name = one.name if layer is None else f"layers.{layer}.{one.name}"
        self.graph.ops.append(Op(name, one.kernel, found.constants, tensors, found.scalars))

    def evaluated(self, one: Launch) -> _Evaluated:
        def shape(reference: Reference) -> tuple[int, ...]:
            if reference.shape is not None:
                return self.step.shape(reference.shape, self.values)
            return self.like(reference.declared).shape

        return _Evaluated(
            {name: value.value(self.values) for name, value in one.constants.items()},
            {name: value.value(self.values) for name, value in one.scalars.items()},
            tuple((name, reference.declared, reference.previous, shape(reference)) for name, reference in one.tensors.items()),
        )

    def like(self, declared: Declared) -> Buffer:
        """A buffer of what is declared, in any layer."""
        found = self.declared.get(id(declared))
        if found is None:
            facts = {name: value.value(self.values) for name, value in declared.facts.items()}
            dtype = self.step.dtype if declared.dtype == DTYPE else declared.dtype
            shape = self.step.shape_of(declared, self.values)
            found = Buffer(self.step.name_of(declared), dtype, shape, declared.kind, **facts)
            self.declared[id(declared)] = found
        return found

    def buffer(self, declared: Declared, layer: int) -> str:
        """The name of what is declared, in a layer where it has one, added to the graph where it is new."""
        like = self.like(declared)
        name = _named(like.name, layer)
        if name not in self.graph.buffers:
            kept = (
                like
                if name == like.name
                else Buffer(name, like.dtype, like.shape, like.kind, like.low, like.high, like.distinct)
            )
            self.graph.buffers[name] = kept
        return name


def merged(rows: tuple[tuple[str, tuple[int, ...]], ...]) -> tuple[int, ...]:
    """The shape of tensors one after the other; StepError where their columns are not as many."""
    (_, first), *others = rows
    if any(shape[1:] != first[1:] for _, shape in others):
        raise StepError(f"the rows of `{rows[0][0]}` and those beside it are not as long")
    return (sum(shape[0] for _, shape in rows), *first[1:])


def _named(name: str, layer: int) -> str:
    return name.replace("*", str(layer)) if "*" in name else name
