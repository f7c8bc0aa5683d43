"""Folding rules for integer arithmetic on constants, and for operations whose result equals an operand.

Every operation is defined for all operands (`tilec.ir.facts.meaning`), so any operation on constants can be folded. Floats are
not folded: `x + 0` is not `x` for every float `x`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilec.ir.core import Op, Value
from tilec.ir.facts.meaning import INTEGER_KINDS, integer_binary, integer_cast, integer_unary
from tilec.ir.ops import Binary, Broadcast, Butterfly, Cast, Compare, Constant, Permute, Reshape, Select, Unary
from tilec.ir.types import TileType

_COMPARISONS: Final[dict[str, Callable[[int, int], bool]]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
_NEUTRAL: Final = {("add", 0), ("sub", 0), ("mul", 1), ("floordiv", 1), ("or", 0), ("xor", 0), ("shl", 0), ("shr", 0)}
"""Right neutral elements of each kind."""


def same_as(op: Op) -> Value | None:
    """The operand that the result always equals; None if there is none."""
    match op:
        case Cast() | Broadcast() | Reshape() if op.operands[0].type == op.result.type:
            return op.operands[0]
        case Permute() if op.axes == tuple(range(len(op.axes))):
            return op.operands[0]
        case Butterfly():
            return _moved_back(op)
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


def _moved_back(op: Butterfly) -> Value | None:
    """What a butterfly of elements that are equal along its axis, or of another one that it undoes, equals."""
    value = op.operands[0]
    match value.owner:
        case Constant():
            return value
        case Broadcast() as repeated:
            source = repeated.operands[0].tile
            return value if not source.rank or source.shape[op.axis] == 1 else None
        case Butterfly(axis=op.axis, mask=op.mask) as before:
            return before.operands[0]
        case _:
            return None


def folded(op: Op) -> Constant | None:
    """The constant that replaces a scalar operation on constants, with the same result type; None if it cannot be folded."""
    if len(op.results) != 1 or not isinstance(op.result.type, TileType) or op.result.type.rank:
        return None
    values = [constant_of(operand) for operand in op.operands]
    found = [value for value in values if value is not None]
    if not found or len(found) != len(values):
        return None
    dtype = op.result.tile.dtype
    match op:
        case Binary() if not dtype.is_float and op.kind in INTEGER_KINDS:
            value = integer_binary(op.kind, found[0], found[1], dtype)
        case Compare():
            value = _COMPARISONS[op.kind](*found)
        case Unary(kind="neg" | "abs" | "not") if not dtype.is_float:
            value = integer_unary(op.kind, found[0], dtype)
        case Cast() if not dtype.is_float:
            value = integer_cast(found[0], dtype)
        case _:
            return None
    constant = Constant(value=bool(value) if dtype.kind == "b" else value, loc=op.loc)
    constant.define(op.result.type)
    return constant


def constant_of(value: Value) -> int | None:
    """The integer or bool that every element of a value equals, if known; None for floats."""
    owner = value.owner
    if isinstance(owner, Broadcast):
        return constant_of(owner.operands[0])
    if isinstance(owner, Constant) and not isinstance(owner.value, float):
        return int(owner.value)
    return None
