"""Emits tile IR (constants, casts, broadcasts) and tracks which values the host can also compute.

A term is the value of an expression: a Python number, dtype, string or tuple at compile time, or an IR value at run time.
Numbers are weakly typed: they get a dtype only when they are combined with a value. Integer scalars computed from dims, integer
parameters and constants are also recorded as host expressions, so `grid` and `requires` can use names that the kernel computes.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tilec.diagnostics.diagnostic import CompileError, Diagnostic, Fix, Label, Span
from tilec.frontend.report import Refused, Source
from tilec.ir import ops
from tilec.ir.core import Block, Op, Parameter, Value
from tilec.ir.expr import ARITHMETIC, Expr, binary, const, sym
from tilec.ir.packed import Codes
from tilec.ir.types import DType, TensorType, TileType, boolean, f32, i32, i64
from tilec.untrusted.limits import MAX_HOST_DEPTH, MAX_HOST_SIZE, MAX_INLINED, MAX_OPERATIONS, MAX_REPEATED

MAX_TILE: Final = 1 << 20
"""Most elements of a tile: far more than fit in a block's registers and shared memory."""


@dataclass(frozen=True, slots=True)
class Poison:
    """A name without a usable value. `diagnostic` gives the reason; None if it was already reported."""

    diagnostic: Diagnostic | None


Number = bool | int | float
Term = Value | Codes | bool | int | float | str | DType | tuple["Term", ...] | Poison | None


@dataclass(frozen=True, slots=True)
class At:
    """The source location of an operation or error."""

    source: Source
    node: ast.AST

    @property
    def span(self) -> Span:
        return self.source.span(self.node)

    def error(self, code: str, message: str, *, label: str = "", hint: str = "", fixes: tuple[Fix, ...] = ()) -> Refused:
        """A refusal at this location, to be raised by the caller."""
        return self.source.error(code, message, self.node, label=label, hint=hint, fixes=fixes)


def canonical(number: float) -> float:
    """The number; for a NaN of any bits `math.nan`, so that equal attributes are equal and print alike."""
    return number if number == number else math.nan


class Emitter:
    """Appends operations to the current block."""

    def __init__(self, parameters: Iterable[Parameter] = (), strides: Collection[str] = ()) -> None:
        self.body = Block()
        self.scalars = {parameter.name: parameter.value for parameter in parameters if parameter.access is None}
        self.strides = strides
        self.block = self.body
        self.unsafe: int | None = None
        self.uses: list[tuple[Span, Term]] | None = None
        """The term of each expression, if requested."""
        self.counted: dict[Value, tuple[Value, Value]] = {}
        """Lower and upper bound of each loop variable."""
        self.steps: dict[Value, Value] = {}
        """Step of each loop variable."""
        self.measures: dict[int, int] = {}
        """Number of the claim that a `while` ends, by the identity of its expression."""
        self._claims = 0
        self._host: dict[Value, Expr] = {}
        self._dims: dict[str, Value] = {}
        self._count = 0
        self._inlined = 0
        self._repeated = 0

    def emit(self, op: Op, at: At, *types: TileType) -> list[Value]:
        """Appends an operation with results of these types; E0511 beyond `MAX_OPERATIONS`."""
        op.loc = at.span
        self._count += 1
        if self._count > MAX_OPERATIONS:
            raise too_large("operations", MAX_OPERATIONS, at)
        op.define(*types)
        self.block.ops.append(op)
        return op.results

    def next_claim(self) -> int:
        """A number that no claim of a loop has yet."""
        self._claims += 1
        return self._claims - 1

    def stands_for(self, at: At, term: Term) -> None:
        """Records the term of a source location in `uses`, if requested."""
        if self.uses is not None:
            self.uses.append((at.span, term))

    def inline(self, at: At) -> None:
        """Counts an inlined call of a tile function; E0511 beyond `MAX_INLINED`."""
        self._inlined += 1
        if self._inlined > MAX_INLINED:
            raise too_large("calls of tile functions", MAX_INLINED, at)

    def repeat(self, at: At) -> None:
        """Counts a repetition of a loop at compile time; E0511 beyond `MAX_REPEATED`."""
        self._repeated += 1
        if self._repeated > MAX_REPEATED:
            raise too_large("repetitions of loops at compile time", MAX_REPEATED, at)

    @contextmanager
    def into(self, block: Block) -> Generator[None]:
        """Appends to another block within the context."""
        outer, self.block = self.block, block
        try:
            yield
        finally:
            self.block = outer

    def know(self, value: Value, expr: Expr) -> None:
        """Records the host expression of `value`, unless the expression is too large for a manifest."""
        if expr.size <= MAX_HOST_SIZE and expr.depth <= MAX_HOST_DEPTH:
            self._host[value] = expr

    def host(self, term: Term) -> Expr | None:
        """The host expression of an integer term, if there is one."""
        if isinstance(term, int):
            return const(int(term))
        return self._host.get(term) if isinstance(term, Value) else None

    def dim(self, symbol: str, at: At) -> Value:
        """Value of a symbolic dim; its operation is emitted once, at the start of the kernel."""
        if symbol not in self._dims:
            op = ops.DimValue(symbol=symbol, loc=at.span)
            op.define(TileType(i64 if symbol in self.strides else i32), names=(symbol,))
            self.body.ops.insert(len(self._dims), op)
            self._dims[symbol] = op.result
            self.know(op.result, sym(symbol))
        return self._dims[symbol]

    def constant(self, value: Number, type: TileType, at: At) -> Value:
        """A tile filled with a number, which must fit the dtype; E0204, E0205."""
        dtype = type.dtype
        if dtype.kind == "b" or isinstance(value, bool):
            if dtype.kind != "b" or not isinstance(value, bool):
                raise at.error(
                    "E0204", f"`{value}` cannot be used as {dtype}", hint="use `where(condition, 1, 0)` or a comparison"
                )
            return self.emit(ops.Constant(value=value), at, type)[0]
        if dtype.is_float:
            number = canonical(as_float(value, at))
            if math.isfinite(number) and abs(number) > dtype.largest:
                raise at.error("E0205", f"{value} does not fit {dtype}", hint=f"the largest finite {dtype} is {dtype.largest}")
            return self.emit(ops.Constant(value=number), at, type)[0]
        if isinstance(value, float):
            raise at.error(
                "E0204", f"the float {value} cannot be used as {dtype}", hint="convert the tile with `.astype(f32)` first"
            )
        low, high = dtype.integer_range()
        if not low <= value <= high:
            raise at.error("E0205", f"{value} does not fit {dtype}", hint="widen with `i64(...)`")
        return self.emit(ops.Constant(value=value), at, type)[0]

    def value(self, term: Term, at: At) -> Value:
        """The term as a tile value; a number becomes i32, f32 or bool."""
        if isinstance(term, Value):
            tile_type(term, at)
            return term
        return self.constant(number_of(term, at), TileType(default_dtype(number_of(term, at))), at)

    def cast(self, term: Term, dtype: DType, at: At) -> Value:
        """Convert the dtype."""
        if not isinstance(term, Value):
            number = number_of(term, at)
            if dtype.is_integer and isinstance(number, float) and math.isfinite(number):
                number = int(number)
            if dtype.kind == "b" or isinstance(number, bool):
                number = bool(number) if dtype.kind == "b" else int(number)
            return self.constant(number, TileType(dtype), at)
        source = tile_type(term, at)
        if source.dtype == dtype:
            return term
        result = self.emit(ops.Cast(operands=[term]), at, TileType(dtype, source.shape))[0]
        known = self.host(term)
        fits = dtype.bits > source.dtype.bits or (dtype.bits == source.dtype.bits and source.dtype.kind == "i")
        if known is not None and dtype.kind == "i" and fits:
            self.know(result, known)
        return result

    def reshape(self, value: Value, shape: tuple[int, ...], at: At) -> Value:
        """Same elements, another shape."""
        if value.tile.shape == shape:
            return value
        return self.emit(ops.Reshape(operands=[value]), at, TileType(value.tile.dtype, shape))[0]

    def broadcast(self, value: Value, shape: tuple[int, ...], at: At) -> Value:
        """Numpy broadcasting of one tile to `shape`; E0202."""
        source = value.tile.shape
        if source == shape:
            return value
        missing = len(shape) - len(source)
        if missing < 0 or any(a not in (1, b) for a, b in zip(source, shape[missing:], strict=True)):
            raise at.error("E0202", f"shape {shape_text(source)} does not broadcast to {shape_text(shape)}",
                    hint="insert axes of extent 1 with `[:, None]` or `[None, :]`")  # fmt: skip
        if source:
            value = self.reshape(value, (1,) * missing + source, at)
        if value.tile.shape == shape:
            return value
        return self.emit(ops.Broadcast(operands=[value]), at, TileType(value.tile.dtype, shape))[0]

    def binary_op(self, kind: str, left: Value, right: Value, at: At) -> Value:
        """An element-wise operation on two values of the same type."""
        result = self.emit(ops.Binary(kind=kind, operands=[left, right]), at, left.tile)[0]
        symbol = _HOST_KINDS.get(kind)
        a, b = self._exact(left), self._exact(right)
        if symbol in ARITHMETIC and a is not None and b is not None and left.tile == TileType(left.tile.dtype):
            self.know(result, binary(symbol, a, b))
        return result

    def _exact(self, value: Value) -> Expr | None:
        """Host expression of a value, integer constants included."""
        if isinstance(value.owner, ops.Constant) and value.tile.dtype.is_integer:
            return const(int(value.owner.value))
        return self._host.get(value)

    def materialize(self, expr: Expr, at: At) -> Term:
        """Computes a host expression in the kernel: in i32, or in i64 if a leaf is a stride or not i32."""
        if expr.constant is not None:
            return expr.constant
        narrow = all(name not in self.strides and self._leaf(name, at).tile.dtype == i32 for name in expr.symbols())
        return self._materialize(expr, i32 if narrow else i64, at)

    def _materialize(self, expr: Expr, dtype: DType, at: At) -> Value:
        if expr.constant is not None:
            return self.constant(expr.constant, TileType(dtype), at)
        if expr.op == "sym":
            leaf = self._leaf(expr.name, at)
            value = self.value(self.cast(leaf, dtype, at), at)
            self.know(value, expr)
            return value
        left, right = (self._materialize(arg, dtype, at) for arg in expr.args)
        return self.binary_op({v: k for k, v in _HOST_KINDS.items()}[expr.op], left, right, at)

    def _leaf(self, name: str, at: At) -> Value:
        return self.scalars[name] if name in self.scalars else self.dim(name, at)


_HOST_KINDS: Final = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "min": "min", "max": "max"}


def too_large(what: str, limit: int, at: At) -> CompileError:
    """The error for a kernel with more than `limit` of something. It ends compilation of the kernel, because every later line
    would repeat it."""
    hint = "split the kernel in two, write repeated steps as a `for` loop, and keep the value of a call that is used twice"
    message = f"the kernel has more than {limit} {what} once its tile functions are inlined"
    return CompileError(Diagnostic("E0511", message, Label(at.span, "here the limit is reached"), hint=hint))


def default_dtype(number: Number) -> DType:
    """Dtype of a number that is not combined with a value."""
    return boolean if isinstance(number, bool) else i32 if isinstance(number, int) else f32


def as_float(number: Number, at: At) -> float:
    """A number as float; E0205 if it is too large."""
    try:
        return float(number)
    except OverflowError:
        raise at.error("E0205", "the number is too large for a float") from None


def number_of(term: Term, at: At) -> Number:
    """The term as a compile-time number; E0217."""
    if isinstance(term, bool | int | float):
        return term
    refuse_codes(term, at)
    raise at.error("E0217", f"expected a tile or a number, found {describe(term)}", hint=_instead(term))


def tile_type(term: Term, at: At) -> TileType:
    """Type of a term that must be a tile value; E0217."""
    if isinstance(term, Value) and isinstance(term.type, TileType):
        return term.type
    refuse_codes(term, at)
    raise at.error("E0217", f"expected a tile, found {describe(term)}", hint=_instead(term))


def refuse_codes(term: Term, at: At) -> None:
    """Raises E0201 for a tile of a packed dtype, which can be stored and converted, and nothing else."""
    if isinstance(term, Codes):
        instead = {"u": "u8", "i": "i8"}.get(term.dtype.kind, "f16")
        message = f"{describe(term)} can only be converted or stored"
        raise at.error("E0201", message, hint=f"convert it first, as in `.astype({instead})`")


def _instead(term: Term) -> str:
    if isinstance(term, Value):
        return f"read it first: `load({term.name}, ...)`"
    return "use its elements one by one" if isinstance(term, tuple) else "use a tile or a number here"


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as Python writes it."""
    return f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(map(str, shape))})"


def describe(term: Term) -> str:
    """A term as text for error messages."""
    if isinstance(term, Value):
        if isinstance(term.type, TensorType):
            return f"the tensor `{term.name}`"
        kind = f"a tile of {term.tile.dtype}" if term.tile.shape else f"a scalar of {term.tile.dtype}"
        return f"{kind} of shape {shape_text(term.tile.shape)}" if term.tile.shape else kind
    if isinstance(term, Codes):
        shape = term.value.tile.shape
        return f"a tile of {term.dtype} of shape {shape_text(shape)}" if shape else f"a scalar of {term.dtype}"
    if isinstance(term, bool | int | float):
        return f"`{term}`"
    if isinstance(term, DType):
        return f"the dtype {term}"
    if isinstance(term, tuple):
        return f"a tuple of {len(term)}"
    if isinstance(term, str):
        return "a string"
    return "nothing" if term is None else "an unusable value"


def usable(term: Term) -> Term:
    """The term itself; raises Refused if it is poisoned."""
    if isinstance(term, Poison):
        raise Refused(term.diagnostic)
    return term
