"""Integer meaning of every computing operation, element by element in row-major order; floats are not tracked (None)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from tilec.ir import ops
from tilec.ir.core import Op
from tilec.ir.types import DType

Tile = list[int | None]

BINARY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b if 0 <= b < 64 else 0,
    "shr": lambda a, b: a >> b if 0 <= b < 64 else 0,
}
COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def wrapped(value: int, dtype: DType) -> int:
    """`value` in two's complement of the dtype."""
    low, _ = dtype.integer_range()
    return (value - low) % (1 << max(dtype.bits, 1)) + low


def evaluate(op: Op, operands: list[Tile]) -> Tile:
    """The exact result, before wrapping to the result's dtype."""
    size = op.result.tile.size
    match op:
        case ops.Constant():
            return [None if isinstance(op.value, float) else int(op.value)] * size
        case ops.Iota():
            return list(range(size))
        case ops.Binary():
            act = BINARY.get(op.kind)
            if act is None:
                return [None] * size
            return [None if a is None or b is None else act(a, b) for a, b in zip(*operands, strict=True)]
        case ops.Compare():
            test = COMPARE[op.kind]
            return [None if a is None or b is None else int(test(a, b)) for a, b in zip(*operands, strict=True)]
        case ops.Select():
            return [None if c is None else a if c else b for c, a, b in zip(*operands, strict=True)]
        case ops.Unary():
            return [None if a is None else _unary(op, a) for a in operands[0]]
        case ops.Cast():
            if op.result.tile.dtype.is_float:
                return [None] * size
            if op.result.tile.dtype.kind == "b":
                return [None if a is None else int(a != 0) for a in operands[0]]
            return operands[0]
        case ops.Reshape():
            return operands[0]
        case ops.Broadcast():
            return _broadcast(op, operands[0])
        case ops.Permute():
            return _permute(op, operands[0])
        case ops.Reduce():
            return _reduce(op, operands[0])
        case _:
            return [None] * size


def _unary(op: ops.Unary, value: int) -> int | None:
    if op.kind == "neg":
        return -value
    if op.kind == "abs":
        return abs(value)
    if op.kind == "not":
        return int(not value) if op.result.tile.dtype.kind == "b" else ~value
    return None


def _at(shape: tuple[int, ...], position: tuple[int, ...]) -> int:
    place = 0
    for extent, index in zip(shape, position, strict=True):
        place = place * extent + index
    return place


def _broadcast(op: Op, tile: Tile) -> Tile:
    source, target = op.operands[0].tile.shape, op.result.tile.shape
    if len(tile) == 1:
        return tile * op.result.tile.size
    places = product(*map(range, target))
    return [tile[_at(source, tuple(0 if e == 1 else i for e, i in zip(source, p, strict=True)))] for p in places]


def _permute(op: ops.Permute, tile: Tile) -> Tile:
    source, target = op.operands[0].tile.shape, op.result.tile.shape
    found: Tile = []
    for position in product(*map(range, target)):
        back = [0] * len(source)
        for axis, index in zip(op.axes, position, strict=True):
            back[axis] = index
        found.append(tile[_at(source, tuple(back))])
    return found


def _reduce(op: ops.Reduce, tile: Tile) -> Tile:
    shape, axis = op.operands[0].tile.shape, op.axis
    found: Tile = []
    for position in product(*map(range, op.result.tile.shape)):
        column = [tile[_at(shape, (*position[:axis], k, *position[axis:]))] for k in range(shape[axis])]
        known = [value for value in column if value is not None]
        if len(known) < len(column):
            found.append(None)
        elif op.kind.startswith("arg"):
            found.append(known.index(max(known) if op.kind == "argmax" else min(known)))
        else:
            found.append(sum(known) if op.kind == "sum" else max(known) if op.kind == "max" else min(known))
    return found
