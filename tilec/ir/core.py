"""Structure of the tile IR: values, operations, blocks and functions.

Typed SSA with structured control flow: an operation uses values (`operands`), defines values (`results`), carries static
attributes (the dataclass fields of its class) and may have regions of one block each (`for`, `if`). A `Function` is one
kernel at one specialisation: all `Const` parameters are folded in. Locations serve diagnostics only; the text form omits
them, so they do not change digests.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from tilec.diagnostics.diagnostic import Span
from tilec.ir.expr import Expr
from tilec.ir.facts.range_facts import Range
from tilec.ir.layouts.layout import Layout
from tilec.ir.types import DType, RingType, ScratchType, SharedType, TensorType, TileType, TmemType, Type


@dataclass(eq=False, slots=True)
class Value:
    """An SSA value. `layout` is None until the layout pass decides how the tile is distributed over threads; `name` is a hint
    from the source. `fits`: the integer arithmetic that computes it is shown not to overflow its dtype wherever it decides an
    address or a synchronization; not part of the text."""

    type: Type
    name: str = ""
    owner: Op | Block | None = field(default=None, repr=False)  # whose repr has this value
    layout: Layout | None = None
    fits: bool = False

    @property
    def tile(self) -> TileType:
        """The type, known to be a tile."""
        assert isinstance(self.type, TileType), self.type
        return self.type

    @property
    def tensor(self) -> TensorType:
        """The type, known to be a tensor."""
        assert isinstance(self.type, TensorType), self.type
        return self.type

    @property
    def shared(self) -> SharedType:
        """The type, known to be a buffer in shared memory."""
        assert isinstance(self.type, SharedType), self.type
        return self.type

    @property
    def scratch(self) -> ScratchType:
        """The type, known to be scratch in shared memory."""
        assert isinstance(self.type, ScratchType), self.type
        return self.type

    @property
    def ring(self) -> RingType:
        """The type, known to be a ring."""
        assert isinstance(self.type, RingType), self.type
        return self.type

    @property
    def tmem(self) -> TmemType:
        """The type, known to be a buffer in tensor memory."""
        assert isinstance(self.type, TmemType), self.type
        return self.type


class Effect(Enum):
    """What an operation does to global memory, or to output."""

    NONE = "none"
    READ = "read"
    WRITE = "write"
    ATOMIC = "atomic"
    CONTROL = "control"
    SHARED = "shared"  # reads or writes shared or tensor memory, or orders accesses to it
    PRINT = "print"  # writes to standard output


class VerifyError(Exception):
    """The IR breaks one of its own rules; always a bug in tilec, never the kernel author's fault."""


OPS: dict[str, type[Op]] = {}
"""Every operation class by opcode."""


@dataclass(eq=False, kw_only=True)
class Op:
    """Base of all operations. A subclass adds attributes as dataclass fields and rules in `verify`, and sets the class
    variables below. Verifier, analyses and layout passes use these variables, so that a new operation needs no change in them.
    """

    opcode: ClassVar[str] = ""
    effect: ClassVar[Effect] = Effect.NONE
    num_operands: ClassVar[int | None] = None
    """None if `verify` checks the count."""
    leading: ClassVar[tuple[type, ...]] = ()
    """Types of the first operands."""
    others: ClassVar[tuple[type, ...]] = (TileType,)
    """Allowed types of the operands after those."""
    num_results: ClassVar[int | None] = 1
    """None if `verify` checks the count."""
    makes_tiles: ClassVar[bool] = True
    """Whether results are tiles; otherwise `verify` checks their types."""
    has_regions: ClassVar[bool] = False
    elementwise: ClassVar[bool] = False
    """Whether an element of the result depends only on the operands' elements at the same position, in the same thread."""
    is_barrier: ClassVar[bool] = False
    """Whether the operation is a barrier."""

    operands: list[Value] = field(default_factory=list[Value])
    results: list[Value] = field(default_factory=list[Value])
    regions: list[Block] = field(default_factory=lambda: list[Block]())
    loc: Span | None = None

    def __init_subclass__(cls, opcode: str = "", effect: Effect = Effect.NONE) -> None:
        if opcode:
            assert opcode not in OPS, opcode
            cls.opcode = opcode
            cls.effect = effect
            OPS[opcode] = cls

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    def attributes(self) -> dict[str, Any]:
        """Static attributes in declaration order."""
        return {name: getattr(self, name) for name in _attribute_names(type(self))}

    def define(self, *types: Type, names: tuple[str, ...] = ()) -> None:
        """Create the results."""
        self.results = [Value(type, names[i] if i < len(names) else "", self) for i, type in enumerate(types)]

    def touched(self) -> tuple[tuple[Value, Effect], ...]:
        """Tensors and shared memory among the operands that it reads, writes or updates, in that order of execution."""
        return ()

    def result_range(self, operands: Sequence[Range]) -> Range | None:
        """Range of the only result over unbounded integers, from the operands' ranges; None if nothing is known."""
        return None

    def verify(self) -> None:
        """Raise VerifyError unless operand and result types fit this operation."""

    def verify_in(self, function: Function) -> None:
        """Raise VerifyError if the kernel lacks something that this operation names, such as a dim or a grid axis."""

    def require(self, condition: bool, rule: str) -> None:
        """Raise VerifyError with the text `rule` unless the condition is true."""
        if not condition:
            raise VerifyError(f"{self.opcode}: {rule}")


_STRUCTURE = frozenset({"operands", "results", "regions", "loc"})


@functools.cache
def _attribute_names(kind: type[Op]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind) if field.name not in _STRUCTURE)


@dataclass(eq=False, slots=True)
class Block:
    """Arguments and operations in order; the last operation of a region's block is `yield`."""

    arguments: list[Value] = field(default_factory=list[Value])
    ops: list[Op] = field(default_factory=list[Op])

    def add_argument(self, type: Type, name: str = "") -> Value:
        """Append a block argument."""
        value = Value(type, name, self)
        self.arguments.append(value)
        return value

    def walk(self) -> Iterator[Op]:
        """All operations, outer before inner, in program order."""
        for op in self.ops:
            yield op
            for region in op.regions:
                yield from region.walk()


class Access(Enum):
    """What a kernel may do with a tensor parameter."""

    IN = "in"
    OUT = "out"
    INOUT = "inout"
    SCRATCH = "scratch"
    ATOMIC = "atomic"
    PEER = "peer"
    """The same tensor in the memory of one of several ranks, read after the meet only."""
    SIGNAL = "signal"
    """What ranks tell each other by, for `meet` only."""

    @property
    def exclusive(self) -> bool:
        """True if no two blocks may access the same element when one of them writes it."""
        return self in (Access.OUT, Access.INOUT, Access.SCRATCH)


@dataclass(eq=False, slots=True)
class Parameter:
    """A kernel parameter: a tensor (`access` set) or a scalar (`access` None). `value` is its SSA value."""

    name: str
    value: Value
    access: Access | None = None
    loc: Span | None = None


@dataclass(frozen=True, slots=True)
class Precondition:
    """`requires(condition)`: true for every launch, because the launcher checks it."""

    condition: Expr
    loc: Span | None = None


@dataclass(frozen=True, slots=True)
class ValueFact:
    """`values(tensor, low, high)`: every integer stored in `tensor` lies in `low <= v < high`; `distinct` says no two
    elements are equal, `distinct_in_rows` that no two of one row are (those whose index differs on the last axis only),
    `sorted` that none is smaller than the one before it, `ends` that the first is `low` and the last `high - 1`. Checked at
    the API boundary, trusted in the kernel."""

    tensor: str
    low: Expr
    high: Expr
    distinct: bool = False
    loc: Span | None = None
    sorted: bool = False
    ends: bool = False
    distinct_in_rows: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags declared in addition to the bounds: some of distinct, distinct_in_rows, sorted, ends."""
        return tuple(name for name in ("distinct", "distinct_in_rows", "sorted", "ends") if getattr(self, name))


@dataclass(frozen=True, slots=True)
class Promise:
    """`ensures(tensor, low, high)`: every integer in `tensor` after a launch lies in `low <= v < high`. With `above`, the
    bounds apply to the difference between `v` and the sum of those tensors' elements at the same index before the launch.
    `distinct` says that no two elements are equal, `distinct_in_rows` that no two of one row are, `sorted` that none is
    smaller than the one before it. The prover shows it; the caller relies on it."""

    tensor: str
    low: Expr
    high: Expr
    above: tuple[str, ...] = ()
    distinct: bool = False
    sorted: bool = False
    loc: Span | None = None
    distinct_in_rows: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags promised in addition to the bounds: some of distinct, distinct_in_rows, sorted."""
        return tuple(name for name in ("distinct", "distinct_in_rows", "sorted") if getattr(self, name))


@dataclass(frozen=True, slots=True)
class Resident:
    """`resident(tensor)`: no kernel that a launch may overlap writes the tensor, which this kernel only reads, such as weights.
    Checked where overlapping launches are ordered."""

    tensor: str
    loc: Span | None = None


@dataclass(frozen=True, slots=True)
class UnsafeBlock:
    """A `with unsafe(reason)` block; accesses inside carry its index in their `unsafe` attribute."""

    reason: str
    loc: Span | None = None


@dataclass(eq=False, slots=True)
class Function:
    """One kernel at one specialisation.

    `dims` are the symbolic launch values other than scalar parameters (dims and strides), in order of first appearance; a
    dim is an i32, a stride an i64 and also listed in `strides`. `constants` are the folded `Const` values. `grid` has 1 to 3
    extents. `body` arguments are the parameters' values in order.
    """

    name: str
    parameters: list[Parameter]
    body: Block
    grid: tuple[Expr, ...] = ()
    dims: tuple[str, ...] = ()
    strides: tuple[str, ...] = ()
    constants: dict[str, int | float | bool | str] = field(default_factory=dict[str, "int | float | bool | str"])
    requires: tuple[Precondition, ...] = ()
    values: tuple[ValueFact, ...] = ()
    promises: tuple[Promise, ...] = ()
    residents: tuple[Resident, ...] = ()
    unsafe: tuple[UnsafeBlock, ...] = ()
    num_warps: int = 0  # of a block; 0 until it has a schedule
    cluster: int = 1  # blocks that compute one tile together; 2: a pair
    loc: Span | None = None

    def parameter(self, name: str) -> Parameter:
        """Parameter by name; KeyError if there is none."""
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        raise KeyError(name)

    def is_resident(self, tensor: Value) -> bool:
        """Whether the kernel may read a tensor before its grid dependency wait."""
        return any(one.tensor == self.parameter_of(tensor).name for one in self.residents)

    def parameter_of(self, value: Value) -> Parameter:
        """The parameter whose value this is."""
        for parameter in self.parameters:
            if parameter.value is value:
                return parameter
        raise KeyError(value.name)


def attribute_text(value: Any) -> str:
    """Canonical text of an attribute value, as the printer writes and the parser reads it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "none"
    if isinstance(value, DType):
        return value.name
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    if isinstance(value, tuple):
        items: tuple[Any, ...] = value  # pyright: ignore[reportUnknownVariableType]
        return f"[{', '.join(attribute_text(item) for item in items)}]"
    return str(value)
