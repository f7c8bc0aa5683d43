"""Operations that compute values from values: constants, arithmetic, changes of shape, reductions, products.

`tilec.ir.ops` states the rules common to all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tilec.ir.core import Function, Op
from tilec.ir.facts.range_facts import Range, arithmetic, between, exactly, reduction, truth, unary
from tilec.ir.types import DType, TileType, boolean, f32, i32, i64

UNARY_KINDS: Final = (
    "neg", "not", "abs", "exp2", "exp", "log2", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "sin", "cos", "floor", "ceil",
    "round", "erf", "fast_exp2", "fast_exp", "fast_log2", "fast_log", "fast_sqrt", "fast_rsqrt", "fast_tanh", "fast_sigmoid",
    "fast_sin", "fast_cos",
)  # fmt: skip
"""Those that begin with `fast_` are the chip's approximations (`tilec/ir/SEMANTICS.md`)."""
FLOAT_UNARY: Final = frozenset(UNARY_KINDS) - {"neg", "not", "abs"}
BINARY_KINDS: Final = (
    "add", "sub", "mul", "div", "floordiv", "mod", "min", "max", "and", "or", "xor", "shl", "shr", "pow", "fast_pow", "mulhi",
)  # fmt: skip
EXP2_GROUP: Final = 16
"""Elements of a thread of which some have a polynomial (`Exp2InParts`)."""
MOST_KEPT: Final = 8.0
"""Largest threshold of a `KeptMaximum`: all 16-bit floats, and f32 with its sums, have room for powers 2^8 times larger."""
COMPARE_KINDS: Final = ("eq", "ne", "lt", "le", "gt", "ge")
REDUCE_KINDS: Final = ("sum", "max", "min", "argmax", "argmin")


@dataclass(eq=False, kw_only=True)
class Constant(Op, opcode="constant"):
    """A tile filled with one value. No operands."""

    num_operands = 0

    value: int | float | bool

    def verify(self) -> None:
        dtype = self.result.tile.dtype
        expected = float if dtype.is_float else bool if dtype.kind == "b" else int
        self.require(type(self.value) is expected, f"a {dtype} constant holds a {expected.__name__}")
        if dtype.is_integer:
            low, high = dtype.integer_range()
            self.require(low <= self.value <= high, f"{self.value} does not fit {dtype}")

    def result_range(self, operands: Sequence[Range]) -> Range | None:
        return exactly(int(self.value)) if isinstance(self.value, int) else None


@dataclass(eq=False, kw_only=True)
class Iota(Op, opcode="iota"):
    """`0, 1, ..., n-1` as i32 of shape (n,). No operands."""

    num_operands = 0

    def verify(self) -> None:
        self.require(self.result.tile.dtype == i32 and self.result.tile.rank == 1, "the result is i32[n]")

    def result_range(self, operands: Sequence[Range]) -> Range | None:
        return between(0, self.result.tile.shape[0] - 1)


@dataclass(eq=False, kw_only=True)
class GridOp(Op):
    """Base of operations that read a grid axis; i32 scalar."""

    num_operands = 0

    axis: int

    def verify_in(self, function: Function) -> None:
        self.require(self.result.type == TileType(i32), "the result is an i32 scalar")
        self.require(0 <= self.axis < len(function.grid), f"the grid has no axis {self.axis}")


@dataclass(eq=False, kw_only=True)
class BlockId(GridOp, opcode="block_id"):
    """Index of this block on a grid axis; i32 scalar in `0 .. grid[axis]`."""


@dataclass(eq=False, kw_only=True)
class NumBlocks(GridOp, opcode="num_blocks"):
    """Extent of a grid axis; i32 scalar."""


@dataclass(eq=False, kw_only=True)
class DimValue(Op, opcode="dim"):
    """Value of a symbolic dim, an i32 scalar, or of a stride, an i64 scalar."""

    num_operands = 0

    symbol: str

    def verify_in(self, function: Function) -> None:
        wanted = i64 if self.symbol in function.strides else i32
        self.require(self.result.type == TileType(wanted), f"the result is an {wanted} scalar")
        self.require(self.symbol in function.dims, f"{self.symbol} is not a dim")


@dataclass(eq=False, kw_only=True)
class Unary(Op, opcode="unary"):
    """Element-wise function of one tile; `kind` is one of `UNARY_KINDS`."""

    num_operands = 1
    elementwise = True

    kind: str

    def verify(self) -> None:
        self.require(self.kind in UNARY_KINDS, f"unknown kind {self.kind}")
        self.require(self.operands[0].type == self.result.type, "operand and result types differ")
        if self.kind in FLOAT_UNARY:
            self.require(self.result.tile.dtype.is_float, f"{self.kind} takes floats")

    def result_range(self, operands: Sequence[Range]) -> Range | None:
        dtype = self.result.tile.dtype
        return unary(self.kind, operands[0], dtype) if dtype.is_integer else None


@dataclass(eq=False, kw_only=True)
class Exp2InParts(Unary, opcode="exp2_in_parts"):
    """A power of two that threads compute by a polynomial, without the special-function unit, for the last `polynomial` of each
    `EXP2_GROUP` elements that they have: `fast_exp2`, with the same bound of its error. Operand: f32. Made by a
    pass, never by an author."""

    kind: str = "fast_exp2"
    polynomial: int
    result_range = Op.result_range

    def verify(self) -> None:
        super().verify()
        self.require(self.kind == "fast_exp2", f"{self.kind} is not computed in parts")
        self.require(self.result.tile.dtype == f32, f"{self.result.tile.dtype} is not computed in parts")
        pairs = self.polynomial % 2 == 0 and 0 < self.polynomial <= EXP2_GROUP
        self.require(pairs, f"{self.polynomial} of {EXP2_GROUP} elements are no pairs")


@dataclass(eq=False, kw_only=True)
class Binary(Op, opcode="binary"):
    """Element-wise `lhs kind rhs` of two tiles of one type; `div`, `pow`, `fast_pow` take floats, `floordiv`, `mod`,
    `mulhi`, shifts integers."""

    num_operands = 2
    elementwise = True

    kind: str

    def verify(self) -> None:
        self.require(self.kind in BINARY_KINDS, f"unknown kind {self.kind}")
        lhs, rhs = self.operands
        self.require(lhs.type == rhs.type == self.result.type, "operand and result types differ")
        dtype = lhs.tile.dtype
        if self.kind in ("div", "pow", "fast_pow"):
            self.require(dtype.is_float, f"{self.kind} takes floats")
        if self.kind in ("floordiv", "mod", "shl", "shr", "mulhi"):
            self.require(dtype.is_integer, f"{self.kind} takes integers")

    def result_range(self, operands: Sequence[Range]) -> Range | None:
        dtype = self.result.tile.dtype
        return arithmetic(self.kind, *operands, bits=dtype.bits) if dtype.is_integer else None


@dataclass(eq=False, kw_only=True)
class BinaryInRange(Binary, opcode="binary_in_range"):
    """A `floordiv`, `mod`, `shl` or `shr` of integers whose right operand is proven, for every launch, to be a positive
    divisor, or a shift amount of at least 0 and less than the width. Same value as `Binary`, without guards in machine code."""

    def verify(self) -> None:
        super().verify()
        self.require(self.kind in ("floordiv", "mod", "shl", "shr"), f"{self.kind} has a value for all operands")


@dataclass(eq=False, kw_only=True)
class KeptMaximum(Op, opcode="kept_maximum"):
    """The second operand where it exceeds the first by more than `threshold`, else the first: a reference for exponentials that
    changes less often than the maximum, from which it differs by at most `threshold`. Where a third operand is not positive,
    the threshold is 0. Operands: f32. Made by a pass, where results do not depend on the reference, never by an author."""

    num_operands = None
    elementwise = True

    threshold: float

    def verify(self) -> None:
        self.require(len(self.operands) in (2, 3), "a maximum has two operands, or three")
        self.require(all(value.type == self.result.type for value in self.operands), "operand and result types differ")
        self.require(self.result.tile.dtype == f32, "a maximum is f32")
        self.require(0 < self.threshold <= MOST_KEPT, f"a maximum may grow by {MOST_KEPT} before it is replaced")


@dataclass(eq=False, kw_only=True)
class Compare(Op, opcode="compare"):
    """Element-wise comparison of two tiles of one type to a bool tile."""

    num_operands = 2
    elementwise = True

    kind: str

    def verify(self) -> None:
        lhs, rhs = self.operands
        self.require(self.kind in COMPARE_KINDS, f"unknown kind {self.kind}")
        self.require(lhs.type == rhs.type, "operand types differ")
        self.require(self.result.type == TileType(boolean, lhs.tile.shape), "the result is a bool tile")

    def result_range(self, operands: Sequence[Range]) -> Range | None:
        return Range(0, 1)


@dataclass(eq=False, kw_only=True)
class Select(Op, opcode="select"):
    """`condition ? on_true : on_false` element-wise; condition is a bool tile of the same shape."""

    num_operands = 3
    elementwise = True

    def verify(self) -> None:
        condition, on_true, on_false = self.operands
        self.require(on_true.type == on_false.type == self.result.type, "operand and result types differ")
        self.require(condition.type == TileType(boolean, self.result.tile.shape), "the condition is a bool tile")


@dataclass(eq=False, kw_only=True)
class Cast(Op, opcode="cast"):
    """Convert the dtype. Float to narrower float rounds to nearest even; float to integer truncates toward zero."""

    num_operands = 1
    elementwise = True

    def verify(self) -> None:
        self.require(self.operands[0].tile.shape == self.result.tile.shape, "a cast keeps the shape")

    def result_range(self, operands: Sequence[Range]) -> Range | None:
        if self.operands[0].tile.dtype.is_float:
            return None
        return truth(operands[0]) if self.result.tile.dtype.kind == "b" else operands[0]


@dataclass(eq=False, kw_only=True)
class Bitcast(Op, opcode="bitcast"):
    """The bits of each element as another dtype of the same width; no bool, which has no bits of its own."""

    num_operands = 1
    elementwise = True

    def verify(self) -> None:
        source, target = self.operands[0].tile, self.result.tile
        self.require(source.shape == target.shape, "a bitcast keeps the shape")
        self.require(source.dtype.bits == target.dtype.bits, "a bitcast keeps the width")
        self.require("b" not in (source.dtype.kind, target.dtype.kind), "a bool is not bitcast")

    def result_range(self, operands: Sequence[Range]) -> Range | None:
        """Of an integer: its range, which the analysis wraps to the result's dtype. A float may have any bits."""
        return operands[0] if self.operands[0].tile.dtype.is_integer else None


@dataclass(eq=False, kw_only=True)
class Broadcast(Op, opcode="broadcast"):
    """Repeat along axes of extent 1; the rank stays. A scalar broadcasts to any shape."""

    num_operands = 1

    def verify(self) -> None:
        source, target = self.operands[0].tile, self.result.tile
        self.require(source.dtype == target.dtype, "a broadcast keeps the dtype")
        if source.rank:
            fits = source.rank == target.rank and all(a in (1, b) for a, b in zip(source.shape, target.shape, strict=True))
            self.require(fits, f"cannot broadcast {source} to {target}")

    def result_range(self, operands: Sequence[Range]) -> Range | None:
        return operands[0]


@dataclass(eq=False, kw_only=True)
class Reshape(Op, opcode="reshape"):
    """Same elements in row-major order under another shape."""

    num_operands = 1

    def verify(self) -> None:
        source, target = self.operands[0].tile, self.result.tile
        self.require(source.dtype == target.dtype and source.size == target.size, "a reshape keeps dtype and size")

    def result_range(self, operands: Sequence[Range]) -> Range | None:
        return operands[0]


@dataclass(eq=False, kw_only=True)
class Permute(Op, opcode="permute"):
    """Reorder axes: axis k of the result is axis `axes[k]` of the operand."""

    num_operands = 1

    axes: tuple[int, ...]

    def verify(self) -> None:
        source, target = self.operands[0].tile, self.result.tile
        self.require(sorted(self.axes) == list(range(source.rank)), "axes is a permutation")
        self.require(target.shape == tuple(source.shape[a] for a in self.axes), "the result shape is permuted")

    def result_range(self, operands: Sequence[Range]) -> Range | None:
        return operands[0]


@dataclass(eq=False, kw_only=True)
class Reduce(Op, opcode="reduce"):
    """Reduce one axis away. `argmax`/`argmin` give the i32 position, the lowest one among equals."""

    num_operands = 1

    kind: str
    axis: int

    def verify(self) -> None:
        source, target = self.operands[0].tile, self.result.tile
        self.require(self.kind in REDUCE_KINDS, f"unknown kind {self.kind}")
        self.require(0 <= self.axis < source.rank, "axis out of range")
        dtype = i32 if self.kind.startswith("arg") else source.dtype
        shape = source.shape[: self.axis] + source.shape[self.axis + 1 :]
        self.require(target == TileType(dtype, shape), f"the result is {dtype} of shape {shape}")

    def result_range(self, operands: Sequence[Range]) -> Range | None:
        source = self.operands[0].tile
        if not source.dtype.is_integer and not self.kind.startswith("arg"):
            return None
        return reduction(self.kind, operands[0], source.shape[self.axis])


@dataclass(eq=False, kw_only=True)
class Mma(Op, opcode="mma"):
    """`a @ b + acc`: a (M, K) and b (K, N) of dtypes that `sum_dtype` allows; acc and result (M, N), of the dtype of sums.
    Elements of f32 are rounded to tf32 first. With three axes, a batch of products."""

    num_operands = 3

    def verify(self) -> None:
        a, b, acc = (value.tile for value in self.operands)
        self.require(a.rank == b.rank == acc.rank and a.rank in (2, 3), "operands have one rank, 2 or 3")
        sums = sum_dtype(a.dtype, b.dtype)
        self.require(sums is not None, f"there are no products of {a.dtype} and {b.dtype}")
        self.require(acc.dtype == sums and self.result.type == acc, f"accumulator and result are {sums}")
        inner = a.shape[-1] == b.shape[-2] and a.shape[:-2] == b.shape[:-2]
        self.require(inner and acc.shape == (*a.shape[:-1], b.shape[-1]), "shapes are (M, K), (K, N), (M, N)")


def sum_dtype(a: DType, b: DType) -> DType | None:
    """The dtype of sums of products of two dtypes, as tensor cores have it: f32 of one float dtype or two of 8 bits, i32 of
    integers of 8 bits, each signed or not; None if there are no such products (PTX ISA, `mma`)."""
    if a.is_float and (a == b or (b.is_float and a.bits == b.bits == 8)):
        return f32
    return i32 if a.is_integer and b.is_integer and a.bits == b.bits == 8 else None


def convert(dtype: DType, value: float) -> int | float | bool:
    """`value` as the Python type of a `Constant` of `dtype`."""
    if dtype.is_float:
        return float(value)
    return bool(value) if dtype.kind == "b" else int(value)
