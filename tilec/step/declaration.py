"""A family's step as `tilec.step.reader` reads it: numbers, weights, buffers, and the statements of each mode."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tilec.step.expressions import Expression
from tilec.step.graph import Kind

DTYPE: Final = "dtype"
"""Used in place of a dtype: the dtype that the model runs in."""

TOKENS: Final = "tokens"
"""The number of tokens that a step takes."""
PAST: Final = "past"
"""The number of tokens in the cache before them."""
LENGTHS: Final = frozenset({TOKENS, PAST})


@dataclass(frozen=True, slots=True, eq=False)
class Declared:
    """A buffer or weight under its full name, with `*` for the layer, and a second `*` for the item of a loop in it. `rows` are
    the checkpoint tensors that a merged weight concatenates; for an unmerged weight, itself. `linear`: a weight that a model
    may store in any of the step's formats."""

    name: str
    kind: Kind
    dtype: str
    shape: tuple[Expression, ...]
    facts: Mapping[str, Expression]
    rows: Mapping[str, tuple[Expression, ...]]
    linear: bool = False

    @property
    def per_layer(self) -> bool:
        return "*" in self.name

    @property
    def loops(self) -> int:
        """How many loops it is in: 0, 1 (each layer has one) or 2 (so does each item of a loop in the layer)."""
        return self.name.count("*")


@dataclass(frozen=True, slots=True)
class Reference:
    """A tensor argument: its declaration; `previous` selects the previous layer's; `shape` is another shape, if given.
    `dequantised`: a linear weight or a cache in 16 bits, whatever its format."""

    declared: Declared
    previous: bool
    shape: tuple[Expression, ...] | None
    dequantised: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """One launch of a kernel; `node` is its location in the text. `overlaps` is as in `tilec.step.graph.Op`."""

    name: str
    kernel: str
    constants: Mapping[str, Expression]
    tensors: Mapping[str, Reference]
    scalars: Mapping[str, Expression]
    node: ast.stmt
    overlaps: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """Statements for the case that `test` is true, and for the case that it is false."""

    test: Expression
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Layers:
    """Statements repeated for each layer."""

    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """Statements of a layer repeated for each `item` below the number `count`; `node` is their location in the text."""

    item: str
    count: str
    body: tuple[Statement, ...]
    node: ast.stmt


Statement = Launch | Condition | Layers | Items


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant of the launches for steps of at most `bound` of a quantity; `bound` is the name of a number. `tokens` is that
    of a prefill's tokens, `filled` that of the filled slots of a cache at decode."""

    quantity: str
    bound: str


@dataclass(frozen=True, slots=True)
class Format:
    """A format of linear weights: codes of `dtype`, with an f32 scale for each block of `block[0]` rows and `block[1]`
    columns."""

    name: str
    dtype: str
    block: tuple[int, int]


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """A format of caches: codes of `dtype`, with an f32 scale for each row of the last axis."""

    name: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Declaration:
    """The step of a family: its syntax as JSON (`syntax`), numbers in order, weights and buffers by name, and the statements of
    each mode. `variants`: what conditions may ask for, by name. `counts`: the number of items of each weight and buffer that
    has one for each item of a loop. `formats`: other formats of its linear weights, by name, and the step for each
    (`tilec.step.formats`). `caches`: other formats of its caches, likewise (`tilec.step.caches`)."""

    syntax: Any
    numbers: tuple[tuple[str, Expression], ...]
    weights: Mapping[str, Declared]
    buffers: Mapping[str, Declared]
    tied: Mapping[str, str]
    variants: Mapping[str, Variant]
    modes: Mapping[str, tuple[Statement, ...]]
    counts: Mapping[str, str]
    formats: Mapping[str, tuple[Format, Declaration]] = field(default_factory=dict[str, "tuple[Format, Declaration]"])
    caches: Mapping[str, tuple[CacheFormat, Declaration]] = field(default_factory=dict[str, "tuple[CacheFormat, Declaration]"])

    @property
    def is_empty(self) -> bool:
        """Whether no mode has a statement, as in a bundle of kernels without a model."""
        return not any(self.modes.values())
