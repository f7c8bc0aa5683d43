"""A family's step as `tilec.step.reader` reads it: numbers, weights, buffers, and the statements of each mode."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from tilec.step.expressions import Expression
from tilec.step.graph import Kind

Size = TypeVar("Size")

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
    may store in any of the step's formats. `axis`: the axis along which rows are concatenated. `items`: of a stacked weight,
    the name of the number of its items. They are its first axis, and its rows are those of each item, with a second `*`.
    `only`: of a weight that some layers lack, whether a layer of some kinds has it."""

    name: str
    kind: Kind
    dtype: str
    shape: tuple[Expression, ...]
    facts: Mapping[str, Expression]
    rows: Mapping[str, tuple[Expression, ...]]
    linear: bool = False
    axis: int = 0
    items: str = ""
    only: Expression | None = None

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
    `dequantised`: a linear weight or a cache in 16 bits, whatever its format. `quantised`: an activation that a format may
    quantise."""

    declared: Declared
    previous: bool
    shape: tuple[Expression, ...] | None
    dequantised: bool = False
    quantised: bool = False


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
class Activations:
    """How a format quantises activations, in prefills of more tokens than the number `above`: codes of `dtype`, with an f32
    scale for each block of `block[0]` rows and `block[1]` columns. With `serve` a step that serves does too, whatever its
    number of rows, and uses no variant that is for a small number."""

    dtype: str
    block: tuple[int, int]
    above: str
    serve: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """One of the tensors of a linear weight in a format: an element of `dtype` for each `block[0]` rows and `block[1]` columns
    of the weight. Its name is the weight's and `suffix`, which also ends the parameter that takes it; codes have none.
    `transposed`: rows of the weight lie along its last axis, and a table's are concatenated there."""

    suffix: str
    dtype: str
    block: tuple[int, int]
    transposed: bool = False

    def shape(self, rows: Size, columns: Size, over: Callable[[Size, int], Size]) -> tuple[Size, Size]:
        """The shape for a weight of `rows` and `columns`; `over` divides an extent."""
        found = over(rows, self.block[0]), over(columns, self.block[1])
        return (found[1], found[0]) if self.transposed else found


@dataclass(frozen=True, slots=True)
class Format:
    """A format of linear weights: its parts, codes first and then scales. `constants` are those of its kernels that a launch of
    16 bits lacks, and their values, which are dtypes. `rows`: the value of `ROWS`, the outputs of a block, in its kernels for
    launches that give another. With `activations`, products of prompts quantise these too; its weights are those of another
    format, `weights`. So they are with `head`: one more weight by name, which is not `linear`, and its format."""

    name: str
    parts: tuple[Part, ...]
    constants: tuple[tuple[str, str], ...] = ()
    rows: int | None = None
    activations: Activations | None = None
    weights: str = ""
    head: tuple[str, Format] | None = None

    @property
    def stored_as(self) -> str:
        """The format that its weights are stored in, which also names its kernels."""
        return self.weights or self.name

    @property
    def dtype(self) -> str:
        """The dtype of the codes."""
        return self.parts[0].dtype

    @property
    def block(self) -> tuple[int, int]:
        """The rows and columns of a weight that share a scale."""
        return self.parts[1].block


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """A format of caches: codes of `dtype`, with an f32 scale for each row of the last axis."""

    name: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Sharding:
    """How ranks share a weight: each has an equal part of its rows, outputs (`axis` 0; of a table, of each of its weights), or
    of its columns, inputs (1). `numbers`: the names of the numbers of the model that are divided for it."""

    axis: int
    numbers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sum:
    """The launches that take the place of one that sums over a weight's columns, where a rank has some of them, or of one that
    reads a part of such a sum: by name, kernels and their arguments as expressions over the parameters of the launch.
    `buffers`: what these launches add, by name: the parameter that each has the dtype and shape of, and whether its first axis
    is divided by the number of ranks. `left`: a parameter that the launch leaves as a part of a sum, for a reader to make
    whole; the launch is then the same."""

    buffers: Mapping[str, tuple[str, bool]]
    launches: Mapping[str, tuple[str, Mapping[str, ast.expr]]]
    left: str = ""


@dataclass(frozen=True, slots=True)
class Declaration:
    """The step of a family: its syntax as JSON (`syntax`), numbers in order, weights and buffers by name, and the statements
    of each mode. `variants`: what conditions may ask for, by name. `kinds`: what they may ask of a layer, and the number
    of the model that lists the layers for which it is true (`tilec.step.layers`). `counts`: the number of items of each
    weight and buffer that has one for each item of a loop. `formats`: other formats of its linear weights, by name, and
    the step for each (`tilec.step.formats`). `caches`: other formats of its caches, likewise (`tilec.step.caches`).
    `shards` by weight, `sums` by kernel: how several ranks share the step (`tilec.step.ranks`)."""

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
    shards: Mapping[str, Sharding] = field(default_factory=dict[str, Sharding])
    sums: Mapping[str, Sum] = field(default_factory=dict[str, Sum])
    kinds: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_empty(self) -> bool:
        """Whether no mode has a statement, as in a bundle of kernels without a model."""
        return not any(self.modes.values())
