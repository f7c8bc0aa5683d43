"""Operations on values only: one function per operation, from operand arrays to the result array."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from tilec.interpreter.dtypes import Array, convert, numpy_dtype
from tilec.interpreter.steps import ArrayArithmetic
from tilec.ir import functions
from tilec.ir.core import Op
from tilec.ir.ops import (
    Binary,
    BinaryInRange,
    Bitcast,
    Broadcast,
    Butterfly,
    Cast,
    Compare,
    Constant,
    Exp2InParts,
    Iota,
    KeptMaximum,
    Mma,
    Permute,
    Reduce,
    Reshape,
    Select,
    Sort,
    Take,
    Unary,
)
from tilec.ir.types import DType, f32


def _fast_sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def _accurate(kind: str) -> Callable[[Array], Array]:
    """A function of `tilec.ir.functions`, with the bits that lowered code has."""

    def apply(x: Array) -> Array:
        flat = np.ascontiguousarray(x).reshape(-1)
        return functions.unary(ArrayArithmetic(flat.shape), kind, flat).reshape(x.shape)

    return apply


def _power(x: Array, y: Array) -> Array:
    bases, exponents = (np.ascontiguousarray(operand).reshape(-1) for operand in (x, y))
    return functions.power(ArrayArithmetic(bases.shape), bases, exponents).reshape(x.shape)


def _error_function(x: Array) -> Array:
    """The C library's in f64, since NumPy has none."""
    return np.array([math.erf(value) for value in x.ravel().tolist()], np.float64).reshape(x.shape)


def _fast_power(x: Array, y: Array) -> Array:
    """Computed with logarithms, because chips have no power instruction: NaN for a negative base, and for 0 or infinity to
    the power 0."""
    return np.exp2(y.astype(np.float64) * np.log2(x.astype(np.float64)))


def _quiet(x: Array) -> Array:
    """With signalling NaN, which `bitcast` can make, as quiet ones: over those alone `fmin` and `fmax` prefer a number."""
    return x * x.dtype.type(1)


def minimum_number(a: Array, b: Array) -> Array:
    """IEEE 754-2019 `minimumNumber`: the number if one operand is NaN; -0 is less than +0."""
    return np.where(a == b, np.where(np.signbit(a), a, b), np.fmin(_quiet(a), _quiet(b)))


def maximum_number(a: Array, b: Array) -> Array:
    """IEEE 754-2019 `maximumNumber`."""
    return np.where(a == b, np.where(np.signbit(a), b, a), np.fmax(_quiet(a), _quiet(b)))


def _special_divisor(b: Array) -> Array:
    """Where a divisor is 0, or -1 of a signed dtype: NumPy's division has no value there for every dividend."""
    return (b == 0) | (b == -1) if b.dtype.kind == "i" else b == 0


def _floor_divide(a: Array, b: Array) -> Array:
    """Rounds toward minus infinity; a zero divisor gives 0, and the smallest value divided by -1 wraps to itself."""
    edge = _special_divisor(b)
    return np.where(edge, a * b, np.floor_divide(a, np.where(edge, 1, b).astype(b.dtype)))


def _remainder(a: Array, b: Array) -> Array:
    """Has the sign of the divisor; 0 if the divisor is 0."""
    edge = _special_divisor(b)
    return np.where(edge, 0, np.remainder(a, np.where(edge, 1, b).astype(b.dtype)))


def _multiply_high(a: Array, b: Array) -> Array:
    """The upper half of the product, whose width is double; Python's integers hold that of two of 64 bits."""
    width = 8 * a.dtype.itemsize
    wide = object if width == 64 else np.dtype(f"{a.dtype.kind}8")
    return np.asarray((a.astype(wide) * b.astype(wide)) >> width).astype(a.dtype)


def _shift_left(a: Array, b: Array) -> Array:
    """A shift amount below 0 or of at least the width gives 0."""
    inside = (b >= 0) & (b < 8 * a.dtype.itemsize)
    return np.where(inside, np.left_shift(a, np.where(inside, b, 0).astype(b.dtype)), 0)


def _shift_right(a: Array, b: Array) -> Array:
    """An arithmetic shift; an amount below 0 or of at least the width gives 0 or -1, by the sign."""
    inside = (b >= 0) & (b < 8 * a.dtype.itemsize)
    return np.where(inside, np.right_shift(a, np.where(inside, b, 0).astype(b.dtype)), np.where(a < 0, -1, 0).astype(a.dtype))


FLOAT_UNARY: Final[dict[str, Callable[[Array], Array]]] = {
    "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "erf": _error_function,
    "fast_exp2": np.exp2, "fast_exp": np.exp, "fast_log2": np.log2, "fast_log": np.log, "fast_sqrt": np.sqrt,
    "fast_rsqrt": lambda x: 1.0 / np.sqrt(x), "fast_tanh": np.tanh, "fast_sigmoid": _fast_sigmoid, "fast_sin": np.sin,
    "fast_cos": np.cos, **{kind: _accurate(kind) for kind in functions.UNARY},
}  # fmt: skip
"""Of `fast_...`, which the chip approximates, the value that is approximated."""
FLOAT_BINARY: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": _power, "fast_pow": _fast_power,
    "min": minimum_number, "max": maximum_number,
}  # fmt: skip
INTEGER_BINARY: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": _floor_divide, "mod": _remainder,
    "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": _shift_left, "shr": _shift_right, "mulhi": _multiply_high,
}  # fmt: skip
COMPARE: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def constant(op: Constant) -> Array:
    """A tile filled with one value."""
    tile = op.result.tile
    if tile.dtype.is_float:
        return convert(np.full(tile.shape, op.value, np.float32), f32, tile.dtype)
    return np.full(tile.shape, op.value).astype(numpy_dtype(tile.dtype))


def iota(op: Iota) -> Array:
    """`0, 1, ..., n-1`."""
    return np.arange(op.result.tile.shape[0], dtype=np.int32)


def unary(op: Unary, x: Array) -> Array:
    """Float functions are computed in f32 and rounded once."""
    dtype = op.result.tile.dtype
    if dtype.is_float:
        return _in_f32(dtype, FLOAT_UNARY[op.kind], x)
    if op.kind == "not":
        return np.logical_not(x) if dtype.kind == "b" else np.bitwise_not(x)
    return np.negative(x) if op.kind == "neg" else np.abs(x)


def binary(op: Binary, left: Array, right: Array) -> Array:
    """Float arithmetic is computed in f32 and rounded once; integers wrap; division and modulo round toward minus infinity.
    Every operation is defined for all operands (`tilec/ir/SEMANTICS.md`)."""
    dtype = op.result.tile.dtype
    if dtype.is_float:
        return _in_f32(dtype, FLOAT_BINARY[op.kind], left, right)
    return np.asarray(INTEGER_BINARY[op.kind](left, right)).astype(numpy_dtype(dtype), copy=False)


def compare(op: Compare, left: Array, right: Array) -> Array:
    """Comparisons with NaN are false, except `ne`."""
    return COMPARE[op.kind](left, right)


def select(_: Select, condition: Array, on_true: Array, on_false: Array) -> Array:
    """Elementwise."""
    return np.where(condition, on_true, on_false).astype(on_true.dtype, copy=False)


def cast(op: Cast, x: Array) -> Array:
    return convert(x, op.operands[0].tile.dtype, op.result.tile.dtype)


def bitcast(op: Bitcast, x: Array) -> Array:
    """The same bits, of a NaN too."""
    return x.view(numpy_dtype(op.result.tile.dtype))


def broadcast(op: Broadcast, x: Array) -> Array:
    """Broadcasts by NumPy's rule, which is also the tile IR's."""
    result = np.empty(op.result.tile.shape, x.dtype)  # faster than `np.broadcast_to`
    result[...] = x
    return result


def reshape(op: Reshape, x: Array) -> Array:
    """Keeps the row-major order of elements."""
    return x.reshape(op.result.tile.shape)


def permute(op: Permute, x: Array) -> Array:
    """Axis k of the result is axis `axes[k]` of the operand."""
    return x.transpose(op.axes)


def butterfly(op: Butterfly, x: Array) -> Array:
    """Element `i ^ mask` along the axis."""
    return x.take([i ^ op.mask for i in range(x.shape[op.axis])], op.axis)


def take(op: Take, x: Array, indices: Array) -> Array:
    """The element at each index; one outside of the axis, which no proven kernel has, counts as the last position."""
    last = x.shape[op.axis] - 1
    return np.take_along_axis(x, np.where((indices < 0) | (indices > last), last, indices), op.axis)


def sort(op: Sort, *tiles: Array) -> list[Array]:
    """All tiles in the order of the first one's elements. NumPy's stable sort has NaN last; the sign decides between zeros."""
    keys = tiles[0]
    if op.operands[0].tile.dtype.is_float:
        wide = keys.astype(np.float32)
        bits = wide.view(np.int32)
        keys = np.where(np.isnan(wide), np.int32(2**31 - 1), np.where(bits < 0, np.int32(-(2**31)) - bits - 1, bits))
    if op.descending:
        keys = np.bitwise_not(keys)
    order = np.argsort(keys, op.axis, kind="stable")
    return [np.take_along_axis(tile, order, op.axis) for tile in tiles]


def reduce(op: Reduce, x: Array) -> Array:
    """Float sums accumulate in f32; `argmax` and `argmin` return the lowest position among equals, and prefer any number to
    NaN."""
    dtype = op.operands[0].tile.dtype
    if op.kind in ("argmax", "argmin"):
        wide = x.astype(np.float32) if dtype.is_float else x
        kind = op.kind.removeprefix("arg")
        best = _extreme(kind, wide, op.axis) if dtype.is_float else wide.max(op.axis) if kind == "max" else wide.min(op.axis)
        # The first element equal to the extremum. If all are NaN, no element is equal and the position is 0.
        return np.asarray(np.argmax(wide == np.expand_dims(best, op.axis), op.axis)).astype(np.int32)
    if dtype.is_float:
        wide = x.astype(np.float32)
        if op.kind == "sum":
            return convert(np.asarray(wide.sum(op.axis, dtype=np.float32)), f32, dtype)
        return convert(_extreme(op.kind, wide, op.axis), f32, dtype)
    if op.kind == "sum":
        return np.asarray(x.sum(op.axis, dtype=x.dtype))
    return np.asarray(x.max(op.axis) if op.kind == "max" else x.min(op.axis))


def _extreme(kind: str, x: Array, axis: int) -> Array:
    """`minimum_number` or `maximum_number` along an axis of floats."""
    extreme = np.asarray((np.fmax if kind == "max" else np.fmin).reduce(_quiet(x), axis))
    preferred_zero = (x == 0) & (np.signbit(x) == (kind == "min"))  # the zero of the preferred sign
    zero = x.dtype.type(0.0 if kind == "max" else -0.0)
    return np.where((extreme == 0) & preferred_zero.any(axis), zero, extreme)


def kept_maximum(op: KeptMaximum, old: Array, new: Array, factor: Array | None = None) -> Array:
    """`new` where it exceeds `old` by more than the threshold, or at all where `factor` is not positive; a NaN never does."""
    threshold = np.float32(op.threshold)
    return np.where(new > old + (threshold if factor is None else np.where(factor > 0, threshold, np.float32(0))), new, old)


def mma(_: Mma, a: Array, b: Array, acc: Array) -> Array:
    """`a @ b + acc` in f32, of f32 operands rounded to tf32; of integers in i32, where it wraps."""
    if acc.dtype == np.int32:  # f64 has every sum of fewer than 2^37 products of 8 bits
        sums = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64) + acc
        return sums.astype(np.int32)
    a, b = (to_tf32(x) if x.dtype == np.float32 else x.astype(np.float32) for x in (a, b))
    return a @ b + acc


def to_tf32(x: Array) -> Array:
    """f32 rounded to the nearest number of 11 significant bits, ties away from zero; NaN and infinities stay (PTX ISA,
    `cvt.rna.tf32.f32`)."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(x), rounded, x).astype(np.float32, copy=False)


def _in_f32(dtype: DType, function: Callable[..., Array], *operands: Array) -> Array:
    wide = [operand.astype(np.float32, copy=False) for operand in operands]
    return convert(np.asarray(function(*wide), dtype=np.float32), f32, dtype)


PURE: Final[dict[type[Op], Callable[..., Array]]] = {
    Constant: constant, Iota: iota, Unary: unary, Exp2InParts: unary, Binary: binary, BinaryInRange: binary,
    KeptMaximum: kept_maximum, Compare: compare, Select: select, Cast: cast, Bitcast: bitcast,
    Broadcast: broadcast, Reshape: reshape,
    Permute: permute, Butterfly: butterfly, Take: take, Reduce: reduce, Mma: mma,
}  # fmt: skip
"""Rules of operations that depend on their operands alone."""
