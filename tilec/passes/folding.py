"""Integer arithmetic of the tile IR on constants, and operations that give their operand back.

Semantics are those of `tilec.ir.ops`: two's complement, division toward minus infinity. What has no value (a zero divisor, a
shift by the width) is left for run time. Floats are left alone, where `x + 0` is not `x` for every `x`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilec.ir.core import Op, Value
from tilec.ir.ops import Binary, Broadcast, Cast, Compare, Constant, Permute, Reshape, Select, Unary
from tilec.ir.types import DType, TileType

_ARITHMETIC: Final[dict[str, Callable[[int, int], int]]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
}
_COMPARISONS: Final[dict[str, Callable[[int, int], bool]]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
_NEUTRAL: Final = {("add", 0), ("sub", 0), ("mul", 1), ("floordiv", 1), ("or", 0), ("xor", 0), ("shl", 0), ("shr", 0)}
"""Right operands that change nothing."""


def same_as(op: Op) -> Value | None:
    """The operand that the result always equals, if there is one."""
    match op:
        case Cast() | Broadcast() | Reshape() if op.operands[0].type == op.result.type:
            return op.operands[0]
        case Permute() if op.axes == tuple(range(len(op.axes))):
            return op.operands[0]
        case Binary():
            left, right = op.operands
            if (op.kind, constant_of(right)) in _NEUTRAL:
                return left
            if op.kind in ("add", "mul", "or", "xor") and (op.kind, constant_of(left)) in _NEUTRAL:
                return right
            return None
        case Select():
            condition, on_true, on_false = op.operands
            known = condition.owner
            if isinstance(known, Constant):
                return on_true if known.value else on_false
            return on_true if on_true is on_false else None
        case _:
            return None


def folded(op: Op) -> Constant | None:
    """A constant to use for a scalar operation on constants; its result has the operation's type."""
    if len(op.results) != 1 or not isinstance(op.result.type, TileType) or op.result.type.rank:
        return None
    values = [constant_of(operand) for operand in op.operands]
    found = [value for value in values if value is not None]
    if not found or len(found) != len(values):
        return None
    dtype = op.result.tile.dtype
    match op:
        case Binary() if dtype.is_integer and _has_value(op.kind, found[1], dtype):
            value = _wrapped(_ARITHMETIC[op.kind](*found), dtype)
        case Compare():
            value = _COMPARISONS[op.kind](*found)
        case Unary(kind="neg") if dtype.is_integer:
            value = _wrapped(-found[0], dtype)
        case Cast() if dtype.is_integer:
            value = _wrapped(found[0], dtype)
        case _:
            return None
    constant = Constant(value=bool(value) if dtype.kind == "b" else value, loc=op.loc)
    constant.define(op.result.type)
    return constant


def constant_of(value: Value) -> int | None:
    """The integer or bool that a value holds everywhere, if that is known; None for floats."""
    owner = value.owner
    if isinstance(owner, Broadcast):
        return constant_of(owner.operands[0])
    if isinstance(owner, Constant) and not isinstance(owner.value, float):
        return int(owner.value)
    return None


def _has_value(kind: str, right: int, dtype: DType) -> bool:
    if kind in ("floordiv", "mod"):
        return right != 0
    if kind in ("shl", "shr"):
        return 0 <= right < dtype.bits
    return kind in _ARITHMETIC


def _wrapped(value: int, dtype: DType) -> int:
    low, high = dtype.integer_range()
    return (value - low) % (high - low + 1) + low
