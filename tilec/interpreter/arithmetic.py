"""Operations on values alone: one function per operation, from operand arrays to the result array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from tilec.interpreter.dtypes import Array, convert, numpy_dtype
from tilec.ir.core import Op
from tilec.ir.ops import Binary, Broadcast, Cast, Compare, Constant, Iota, Mma, Permute, Reduce, Reshape, Select, Unary
from tilec.ir.types import DType


class DivisionByZero(Exception):
    """An integer `floordiv` or `mod` by zero."""


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


FLOAT_UNARY: Final[dict[str, Callable[[Array], Array]]] = {
    "neg": np.negative, "abs": np.abs, "exp2": np.exp2, "exp": np.exp, "log2": np.log2, "log": np.log, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x), "tanh": np.tanh, "sigmoid": _sigmoid, "sin": np.sin, "cos": np.cos,
    "floor": np.floor, "ceil": np.ceil,
}  # fmt: skip
FLOAT_BINARY: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power, "min": np.fmin, "max": np.fmax,
}  # fmt: skip
INTEGER_BINARY: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide, "mod": np.remainder,
    "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": np.left_shift, "shr": np.right_shift,
}  # fmt: skip
COMPARE: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def constant(op: Constant) -> Array:
    """A filled tile."""
    tile = op.result.tile
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
    """Float arithmetic in f32, rounded once; integers wrap; division and modulo round toward minus infinity."""
    dtype = op.result.tile.dtype
    if dtype.is_float:
        return _in_f32(dtype, FLOAT_BINARY[op.kind], left, right)
    if op.kind in ("floordiv", "mod") and not right.all():
        raise DivisionByZero
    return np.asarray(INTEGER_BINARY[op.kind](left, right)).astype(numpy_dtype(dtype))


def compare(op: Compare, left: Array, right: Array) -> Array:
    """Anything compared with NaN is unequal to it."""
    return COMPARE[op.kind](left, right)


def select(_: Select, condition: Array, on_true: Array, on_false: Array) -> Array:
    """Element by element."""
    return np.where(condition, on_true, on_false).astype(on_true.dtype)


def cast(op: Cast, x: Array) -> Array:
    """See `convert`."""
    return convert(x, op.operands[0].tile.dtype, op.result.tile.dtype)


def broadcast(op: Broadcast, x: Array) -> Array:
    """NumPy's rule, which is the tile IR's."""
    return np.broadcast_to(x, op.result.tile.shape)


def reshape(op: Reshape, x: Array) -> Array:
    """Row-major."""
    return x.reshape(op.result.tile.shape)


def permute(op: Permute, x: Array) -> Array:
    """Axis k of the result is axis `axes[k]` of the operand."""
    return x.transpose(op.axes)


def reduce(op: Reduce, x: Array) -> Array:
    """Float sums accumulate in f32; `argmax` and `argmin` give the lowest position among equals."""
    dtype = op.operands[0].tile.dtype
    if op.kind in ("argmax", "argmin"):
        wide = x.astype(np.float32) if dtype.is_float else x
        found = np.argmax(wide, op.axis) if op.kind == "argmax" else np.argmin(wide, op.axis)
        return np.asarray(found).astype(np.int32)
    if dtype.is_float:
        wide = x.astype(np.float32)
        if op.kind == "sum":
            return np.asarray(wide.sum(op.axis, dtype=np.float32)).astype(x.dtype)
        return np.asarray((np.fmax if op.kind == "max" else np.fmin).reduce(wide, op.axis)).astype(x.dtype)
    if op.kind == "sum":
        return np.asarray(x.sum(op.axis, dtype=x.dtype))
    return np.asarray(x.max(op.axis) if op.kind == "max" else x.min(op.axis))


def mma(_: Mma, a: Array, b: Array, acc: Array) -> Array:
    """`a @ b + acc` in f32."""
    return a.astype(np.float32) @ b.astype(np.float32) + acc


def _in_f32(dtype: DType, function: Callable[..., Array], *operands: Array) -> Array:
    wide = [operand.astype(np.float32) for operand in operands]
    return np.asarray(function(*wide), dtype=np.float32).astype(numpy_dtype(dtype))


PURE: Final[dict[type[Op], Callable[..., Array]]] = {
    Constant: constant, Iota: iota, Unary: unary, Binary: binary, Compare: compare, Select: select, Cast: cast,
    Broadcast: broadcast, Reshape: reshape, Permute: permute, Reduce: reduce, Mma: mma,
}  # fmt: skip
"""Rules of operations that depend on their operands alone."""
