"""Every tile-level operation: operands, attributes, memory effect, typing rules; nothing else.

Tiles are values of one block; a scalar is a tile of shape `()`. Every operation has a value for all operands; the table of them
is `SEMANTICS.md` beside this file. Integer arithmetic is two's complement; `floordiv` and `mod` round toward minus infinity.
bf16 and f16 arithmetic is computed in f32 and rounded once per operation. Reductions of float tiles are carried out in f32.
Operand order is given in each docstring.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilec.ir.core import Effect, Op, Value, VerifyError
from tilec.ir.types import DType, TensorType, TileType, boolean, f32, i32

UNARY_KINDS: Final = (
    "neg", "not", "abs", "exp2", "exp", "log2", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "sin", "cos", "floor", "ceil",
)  # fmt: skip
FLOAT_UNARY: Final = frozenset(UNARY_KINDS) - {"neg", "not", "abs"}
BINARY_KINDS: Final = (
    "add", "sub", "mul", "div", "floordiv", "mod", "min", "max", "and", "or", "xor", "shl", "shr", "pow",
)  # fmt: skip
COMPARE_KINDS: Final = ("eq", "ne", "lt", "le", "gt", "ge")
REDUCE_KINDS: Final = ("sum", "max", "min", "argmax", "argmin")
ATOMIC_KINDS: Final = ("add", "max", "min")
ATOMIC_DTYPES: Final = ("f32", "i32", "u32", "i64")
"""Dtypes of atomics: those of whole words. A part of a word would be a compare-and-swap of its neighbours too."""


def _require(condition: bool, op: Op, rule: str) -> None:
    if not condition:
        raise VerifyError(f"{op.opcode}: {rule}")


@dataclass(eq=False, kw_only=True)
class Constant(Op, opcode="constant"):
    """A tile filled with one value. No operands."""

    value: int | float | bool

    def verify(self) -> None:
        dtype = self.result.tile.dtype
        expected = float if dtype.is_float else bool if dtype.kind == "b" else int
        _require(type(self.value) is expected, self, f"a {dtype} constant holds a {expected.__name__}")
        if dtype.is_integer:
            low, high = dtype.integer_range()
            _require(low <= self.value <= high, self, f"{self.value} does not fit {dtype}")


@dataclass(eq=False, kw_only=True)
class Iota(Op, opcode="iota"):
    """`0, 1, ..., n-1` as i32 of shape (n,). No operands."""

    def verify(self) -> None:
        _require(self.result.tile.dtype == i32 and self.result.tile.rank == 1, self, "the result is i32[n]")


@dataclass(eq=False, kw_only=True)
class BlockId(Op, opcode="block_id"):
    """Index of this block on a grid axis; i32 scalar in `0 .. grid[axis]`."""

    axis: int


@dataclass(eq=False, kw_only=True)
class NumBlocks(Op, opcode="num_blocks"):
    """Extent of a grid axis; i32 scalar."""

    axis: int


@dataclass(eq=False, kw_only=True)
class DimValue(Op, opcode="dim"):
    """Value of a symbolic dim; i32 scalar. Of a stride: i64 scalar."""

    symbol: str


@dataclass(eq=False, kw_only=True)
class Unary(Op, opcode="unary"):
    """Element-wise function of one tile; `kind` is one of `UNARY_KINDS`."""

    kind: str

    def verify(self) -> None:
        _require(self.kind in UNARY_KINDS, self, f"unknown kind {self.kind}")
        _require(self.operands[0].type == self.result.type, self, "operand and result types differ")
        if self.kind in FLOAT_UNARY:
            _require(self.result.tile.dtype.is_float, self, f"{self.kind} takes floats")


@dataclass(eq=False, kw_only=True)
class Binary(Op, opcode="binary"):
    """Element-wise `lhs kind rhs` of two tiles of one type; `div` and `pow` take floats, `floordiv`, `mod`, shifts integers."""

    kind: str

    def verify(self) -> None:
        _require(self.kind in BINARY_KINDS, self, f"unknown kind {self.kind}")
        lhs, rhs = self.operands
        _require(lhs.type == rhs.type == self.result.type, self, "operand and result types differ")
        dtype = lhs.tile.dtype
        if self.kind in ("div", "pow"):
            _require(dtype.is_float, self, f"{self.kind} takes floats")
        if self.kind in ("floordiv", "mod", "shl", "shr"):
            _require(dtype.is_integer, self, f"{self.kind} takes integers")


@dataclass(eq=False, kw_only=True)
class BinaryInRange(Binary, opcode="binary_in_range"):
    """A `floordiv`, `mod`, `shl` or `shr` of integers whose right operand is proven, for every launch, to be a positive divisor
    or an amount from 0 to below the width. The same value as `Binary`, and the chip's plain instruction gives it."""

    def verify(self) -> None:
        super().verify()
        _require(self.kind in ("floordiv", "mod", "shl", "shr"), self, f"{self.kind} has a value for all operands")


@dataclass(eq=False, kw_only=True)
class Compare(Op, opcode="compare"):
    """Element-wise comparison of two tiles of one type to a bool tile."""

    kind: str

    def verify(self) -> None:
        lhs, rhs = self.operands
        _require(self.kind in COMPARE_KINDS, self, f"unknown kind {self.kind}")
        _require(lhs.type == rhs.type, self, "operand types differ")
        _require(self.result.type == TileType(boolean, lhs.tile.shape), self, "the result is a bool tile")


@dataclass(eq=False, kw_only=True)
class Select(Op, opcode="select"):
    """`condition ? on_true : on_false` element-wise; condition is a bool tile of the same shape."""

    def verify(self) -> None:
        condition, on_true, on_false = self.operands
        _require(on_true.type == on_false.type == self.result.type, self, "operand and result types differ")
        _require(condition.type == TileType(boolean, self.result.tile.shape), self, "the condition is a bool tile")


@dataclass(eq=False, kw_only=True)
class Cast(Op, opcode="cast"):
    """Convert the dtype. Float to narrower float rounds to nearest even; float to integer truncates toward zero."""

    def verify(self) -> None:
        _require(self.operands[0].tile.shape == self.result.tile.shape, self, "a cast keeps the shape")


@dataclass(eq=False, kw_only=True)
class Broadcast(Op, opcode="broadcast"):
    """Repeat along axes of extent 1; the rank stays. A scalar broadcasts to any shape."""

    def verify(self) -> None:
        source, target = self.operands[0].tile, self.result.tile
        _require(source.dtype == target.dtype, self, "a broadcast keeps the dtype")
        if source.rank:
            fits = source.rank == target.rank and all(a in (1, b) for a, b in zip(source.shape, target.shape, strict=True))
            _require(fits, self, f"cannot broadcast {source} to {target}")


@dataclass(eq=False, kw_only=True)
class Reshape(Op, opcode="reshape"):
    """Same elements in row-major order under another shape."""

    def verify(self) -> None:
        source, target = self.operands[0].tile, self.result.tile
        _require(source.dtype == target.dtype and source.size == target.size, self, "a reshape keeps dtype and size")


@dataclass(eq=False, kw_only=True)
class Permute(Op, opcode="permute"):
    """Reorder axes: axis k of the result is axis `axes[k]` of the operand."""

    axes: tuple[int, ...]

    def verify(self) -> None:
        source, target = self.operands[0].tile, self.result.tile
        _require(sorted(self.axes) == list(range(source.rank)), self, "axes is a permutation")
        _require(target.shape == tuple(source.shape[a] for a in self.axes), self, "the result shape is permuted")


@dataclass(eq=False, kw_only=True)
class Reduce(Op, opcode="reduce"):
    """Reduce one axis away. `argmax`/`argmin` give the i32 position, the lowest one among equals."""

    kind: str
    axis: int

    def verify(self) -> None:
        source, target = self.operands[0].tile, self.result.tile
        _require(self.kind in REDUCE_KINDS, self, f"unknown kind {self.kind}")
        _require(0 <= self.axis < source.rank, self, "axis out of range")
        dtype = i32 if self.kind.startswith("arg") else source.dtype
        shape = source.shape[: self.axis] + source.shape[self.axis + 1 :]
        _require(target == TileType(dtype, shape), self, f"the result is {dtype} of shape {shape}")


@dataclass(eq=False, kw_only=True)
class Mma(Op, opcode="mma"):
    """`a @ b + acc`: a (M, K) and b (K, N) of one of bf16, f16, f8; acc and result f32 (M, N)."""

    def verify(self) -> None:
        a, b, acc = (value.tile for value in self.operands)
        _require(a.rank == b.rank == acc.rank == 2, self, "operands have rank 2")
        _require(a.dtype == b.dtype and a.dtype.is_float, self, "a and b share a float dtype")
        _require(acc.dtype == f32 and self.result.type == acc, self, "accumulator and result are f32")
        _require(acc.shape == (a.shape[0], b.shape[1]) and a.shape[1] == b.shape[0], self, "shapes are (M, K), (K, N), (M, N)")


@dataclass(eq=False, kw_only=True)
class Load(Op, opcode="load", effect=Effect.READ):
    """Read the box `[offset_k, offset_k + shape_k)` of a tensor. Operands: tensor, one i32/i64 scalar offset (in elements)
    per axis. With `pad`, elements outside the tensor read as that value; without, the box lies inside (proven).
    `unsafe` is the index of the enclosing unsafe block or None. `vector` is how many bytes a thread may move at once, as the
    layout pass proved from alignment; 0 before it ran."""

    pad: float | None = None
    unsafe: int | None = None
    vector: int = 0

    @property
    def source(self) -> Value:
        return self.operands[0]

    @property
    def offsets(self) -> list[Value]:
        return self.operands[1:]

    def verify(self) -> None:
        _verify_box(self, self.source, self.offsets, self.result)


@dataclass(eq=False, kw_only=True)
class Store(Op, opcode="store", effect=Effect.WRITE):
    """Write a tile over the box at the offsets. Operands: tensor, tile, offsets. With `mask`, elements of the box outside
    the tensor are not written; without, the box lies inside (proven). `vector` is as for a load."""

    mask: bool = False
    unsafe: int | None = None
    vector: int = 0

    @property
    def target(self) -> Value:
        return self.operands[0]

    @property
    def tile(self) -> Value:
        return self.operands[1]

    @property
    def offsets(self) -> list[Value]:
        return self.operands[2:]

    def verify(self) -> None:
        _verify_box(self, self.target, self.offsets, self.tile)


@dataclass(eq=False, kw_only=True)
class Gather(Op, opcode="gather", effect=Effect.READ):
    """Read one element per tile position. Operands: tensor, one integer index tile per axis (all of the result's shape).
    With `pad`, positions whose index lies outside the tensor read as that value."""

    pad: float | None = None
    unsafe: int | None = None

    @property
    def source(self) -> Value:
        return self.operands[0]

    @property
    def indices(self) -> list[Value]:
        return self.operands[1:]

    def verify(self) -> None:
        _verify_indices(self, self.source, self.indices, self.result)


@dataclass(eq=False, kw_only=True)
class Scatter(Op, opcode="scatter", effect=Effect.WRITE):
    """Write one element per tile position. Operands: tensor, tile, one integer index tile per axis. With `mask`, positions
    whose index lies outside the tensor are not written."""

    mask: bool = False
    unsafe: int | None = None

    @property
    def target(self) -> Value:
        return self.operands[0]

    @property
    def tile(self) -> Value:
        return self.operands[1]

    @property
    def indices(self) -> list[Value]:
        return self.operands[2:]

    def verify(self) -> None:
        _verify_indices(self, self.target, self.indices, self.tile)


@dataclass(eq=False, kw_only=True)
class AtomicUpdate(Op, opcode="atomic", effect=Effect.ATOMIC):
    """Combine a tile into the box at the offsets, atomically per element, relaxed order. Operands: tensor, tile, offsets."""

    kind: str
    mask: bool = False
    unsafe: int | None = None

    @property
    def target(self) -> Value:
        return self.operands[0]

    @property
    def tile(self) -> Value:
        return self.operands[1]

    @property
    def offsets(self) -> list[Value]:
        return self.operands[2:]

    def verify(self) -> None:
        _require(self.kind in ATOMIC_KINDS, self, f"unknown kind {self.kind}")
        _require(self.target.tensor.dtype.name in ATOMIC_DTYPES, self, f"atomics of {self.target.tensor.dtype} do not exist")
        _verify_box(self, self.target, self.offsets, self.tile)


@dataclass(eq=False, kw_only=True)
class For(Op, opcode="for", effect=Effect.CONTROL):
    """`for iv in range(lower, upper, step)`. Operands: lower, upper, step (i32 scalars), then initial values of the loop
    carried values. One region; its arguments are iv and the carried values; its `yield` gives the next ones. Results are
    the carried values after the last iteration. The step is positive."""

    variable: str = ""

    @property
    def lower(self) -> Value:
        return self.operands[0]

    @property
    def upper(self) -> Value:
        return self.operands[1]

    @property
    def step(self) -> Value:
        return self.operands[2]

    @property
    def initial(self) -> list[Value]:
        return self.operands[3:]

    def verify(self) -> None:
        (body,) = self.regions
        carried = [value.type for value in self.initial]
        _require(all(value.type == TileType(i32) for value in self.operands[:3]), self, "bounds and step are i32")
        _require([value.type for value in body.arguments] == [TileType(i32), *carried], self, "body arguments differ")
        _require([value.type for value in self.results] == carried, self, "results differ from the carried values")
        _require(bool(body.ops) and isinstance(body.ops[-1], Yield), self, "the body ends in yield")
        _require([value.type for value in body.ops[-1].operands] == carried, self, "yield differs from carried values")


@dataclass(eq=False, kw_only=True)
class If(Op, opcode="if", effect=Effect.CONTROL):
    """Run one of two regions. Operand: bool scalar. Regions: then, else (may hold only `yield`). Results: yielded values."""

    def verify(self) -> None:
        _require(self.operands[0].type == TileType(boolean), self, "the condition is a bool scalar")
        types = [value.type for value in self.results]
        _require(len(self.regions) == 2, self, "there are two regions")
        for region in self.regions:
            _require(bool(region.ops) and isinstance(region.ops[-1], Yield), self, "each region ends in yield")
            _require([value.type for value in region.ops[-1].operands] == types, self, "yield differs from the results")


@dataclass(eq=False, kw_only=True)
class Yield(Op, opcode="yield", effect=Effect.CONTROL):
    """End of a region's block; operands are the region's results."""


def _verify_box(op: Op, tensor: Value, offsets: list[Value], tile: Value) -> None:
    _require(isinstance(tensor.type, TensorType), op, "the first operand is a tensor")
    _require(tile.tile.dtype == tensor.tensor.dtype, op, "tile and tensor share a dtype")
    _require(tile.tile.rank == tensor.tensor.rank == len(offsets), op, "one offset and one extent per tensor axis")
    for offset in offsets:
        _require(offset.tile.rank == 0 and offset.tile.dtype.is_integer, op, "offsets are integer scalars")


def _verify_indices(op: Op, tensor: Value, indices: list[Value], tile: Value) -> None:
    _require(isinstance(tensor.type, TensorType), op, "the first operand is a tensor")
    _require(tile.tile.dtype == tensor.tensor.dtype, op, "tile and tensor share a dtype")
    _require(len(indices) == tensor.tensor.rank, op, "one index tile per tensor axis")
    for index in indices:
        _require(index.tile.dtype.is_integer and index.tile.shape == tile.tile.shape, op, "indices have the tile's shape")


def convert(dtype: DType, value: float) -> int | float | bool:
    """`value` as the Python type a `Constant` of `dtype` holds."""
    if dtype.is_float:
        return float(value)
    return bool(value) if dtype.kind == "b" else int(value)
