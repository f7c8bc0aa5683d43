"""The value of every computing operation, element by element in row-major order: plain integers, and floats of `floats`.

Integers are exact here; the caller wraps them to the result's dtype, and so detects overflow. Operations without an exact
integer result (complement, right shifts, conversions) return the wrapped value directly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

from tests.soundness import floats
from tilec.ir import ops
from tilec.ir.core import Op
from tilec.ir.types import DType, f32

Number = int | float
Tile = list[Number]

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
}
COMPARE: dict[str, Callable[[Number, Number], bool]] = {
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
    """The result; an integer is not yet wrapped to the result's dtype."""
    size = op.result.tile.size
    match op:
        case ops.Constant():
            return [floats.rounded(op.value, op.result.tile.dtype) if isinstance(op.value, float) else int(op.value)] * size
        case ops.Iota():
            return list(range(size))
        case ops.Binary():
            act = _binary(op.kind, op.result.tile.dtype)
            return [act(a, b) for a, b in zip(*operands, strict=True)]
        case ops.Compare():
            test = COMPARE[op.kind]
            return [int(test(a, b)) for a, b in zip(*operands, strict=True)]
        case ops.Select():
            return [a if c else b for c, a, b in zip(*operands, strict=True)]
        case ops.Unary():
            dtype = op.result.tile.dtype
            return [_unary(op.kind, dtype, a) for a in operands[0]]
        case ops.Cast():
            return _cast(op, operands[0])
        case ops.Bitcast():
            return [_bits_as(op, value) for value in operands[0]]
        case ops.Reshape():
            return operands[0]
        case ops.Broadcast():
            return _broadcast(op, operands[0])
        case ops.Permute():
            return _permute(op, operands[0])
        case ops.Butterfly():
            return _butterfly(op, operands[0])
        case ops.Take():
            return _take(op, *operands)
        case ops.Reduce():
            return _reduce(op, operands[0])
        case ops.Mma():
            return _mma(op, *operands)
        case _:
            raise NotImplementedError(op.opcode)


def sort(op: ops.Sort, operands: list[Tile]) -> list[Tile]:
    """The tiles in the order of the first one, whose equal elements keep theirs; all NaN are equal and above all numbers."""
    shape, axis = op.operands[0].tile.shape, op.axis
    found: list[Tile] = [[0] * len(tile) for tile in operands]
    for line in product(*map(range, (*shape[:axis], 1, *shape[axis + 1 :]))):
        line_indices = [_at(shape, (*line[:axis], k, *line[axis + 1 :])) for k in range(shape[axis])]
        order = sorted(line_indices, key=lambda slot: _rank(operands[0][slot]), reverse=op.descending)
        for tile, result in zip(operands, found, strict=True):
            for slot, source in zip(line_indices, order, strict=True):
                result[slot] = tile[source]
    return found


def _rank(value: Number) -> tuple[bool, Number, bool]:
    """The place of a key among others: NaN last, and -0 before 0."""
    if math.isnan(value):
        return True, 0, False
    return False, value, math.copysign(1.0, value) > 0


def _binary(kind: str, dtype: DType) -> Callable[..., Number]:
    if dtype.is_float:
        act = floats.BINARY[kind]
        return lambda a, b: floats.rounded(act(a, b), dtype)
    if kind == "shl":
        return lambda a, b: a << b if 0 <= b < dtype.bits else 0
    if kind == "shr":
        return lambda a, b: a >> b if 0 <= b < dtype.bits else -1 if a < 0 else 0
    if kind == "mulhi":
        return lambda a, b: a * b // (1 << dtype.bits)
    return BINARY[kind]


def _unary(kind: str, dtype: DType, value: Number) -> Number:
    if dtype.is_float:
        return floats.rounded(floats.UNARY[kind](value), dtype)
    assert isinstance(value, int)
    if kind == "neg":
        return -value
    if kind == "abs":
        return abs(value)
    assert kind == "not", kind
    return int(not value) if dtype.kind == "b" else wrapped(~value, dtype)


def _cast(op: Op, tile: Tile) -> Tile:
    source, target = op.operands[0].tile.dtype, op.result.tile.dtype
    if target.kind == "b":
        return [int(a != 0) for a in tile]
    if target.is_float:
        return [floats.rounded(a, target) if source.is_float else floats.from_int(int(a), target) for a in tile]
    return [floats.to_int(a, target) for a in tile] if source.is_float else tile


def _bits_as(op: Op, value: Number) -> Number:
    """The bits of one element, of an integer within its dtype, as the result's dtype."""
    source, target = op.operands[0].tile.dtype, op.result.tile.dtype
    bits = floats.bits_of(float(value), source) if source.is_float else int(value) & ((1 << source.bits) - 1)
    return floats.from_bits(bits, target) if target.is_float else wrapped(bits, target)


def _at(shape: tuple[int, ...], position: tuple[int, ...]) -> int:
    flat_index = 0
    for extent, index in zip(shape, position, strict=True):
        flat_index = flat_index * extent + index
    return flat_index


def _broadcast(op: Op, tile: Tile) -> Tile:
    source, target = op.operands[0].tile.shape, op.result.tile.shape
    if len(tile) == 1:
        return tile * op.result.tile.size
    positions = product(*map(range, target))
    return [tile[_at(source, tuple(0 if e == 1 else i for e, i in zip(source, p, strict=True)))] for p in positions]


def _permute(op: ops.Permute, tile: Tile) -> Tile:
    source, target = op.operands[0].tile.shape, op.result.tile.shape
    result: Tile = []
    for position in product(*map(range, target)):
        source_position = [0] * len(source)
        for axis, index in zip(op.axes, position, strict=True):
            source_position[axis] = index
        result.append(tile[_at(source, tuple(source_position))])
    return result


def _butterfly(op: ops.Butterfly, tile: Tile) -> Tile:
    shape = op.result.tile.shape
    partners = ([i ^ op.mask if axis == op.axis else i for axis, i in enumerate(p)] for p in product(*map(range, shape)))
    return [tile[_at(shape, tuple(partner))] for partner in partners]


def _take(op: ops.Take, tile: Tile, indices: Tile) -> Tile:
    """An index outside of the axis counts as the last position."""
    shape = op.operands[0].tile.shape
    found: Tile = []
    for position, index in zip(product(*map(range, op.result.tile.shape)), indices, strict=True):
        slot = int(index) if 0 <= index < shape[op.axis] else shape[op.axis] - 1
        found.append(tile[_at(shape, (*position[: op.axis], slot, *position[op.axis + 1 :]))])
    return found


def _reduce(op: ops.Reduce, tile: Tile) -> Tile:
    shape, axis, dtype = op.operands[0].tile.shape, op.axis, op.operands[0].tile.dtype
    columns = (
        [tile[_at(shape, (*position[:axis], k, *position[axis:]))] for k in range(shape[axis])]
        for position in product(*map(range, op.result.tile.shape))
    )
    return [_reduced(op.kind, dtype, column) for column in columns]


def _reduced(kind: str, dtype: DType, column: Tile) -> Number:
    if kind.startswith("arg"):
        return _position(column, floats.maximum_number if kind == "argmax" else floats.minimum_number)
    if kind == "sum":
        if not dtype.is_float:
            return sum(column)
        total = 0.0
        for value in column:
            total = floats.to_f32(total + value)
        return floats.rounded(total, dtype)
    choose = floats.maximum_number if kind == "max" else floats.minimum_number
    if not dtype.is_float:
        return max(column) if kind == "max" else min(column)
    best = column[0]
    for value in column[1:]:
        best = choose(best, value)
    return best


def _position(column: Tile, choose: Callable[[float, float], float]) -> int:
    """The lowest position of the extreme element; 0 if all are NaN."""
    best = column[0]
    for value in column[1:]:
        if isinstance(best, int):
            best = (max if choose is floats.maximum_number else min)(best, value)
        else:
            best = choose(best, value)
    return next((slot for slot, value in enumerate(column) if value == best), 0)


def _mma(op: Op, left: Tile, right: Tile, acc: Tile) -> Tile:
    (rows, inner), (_, columns) = op.operands[0].tile.shape, op.operands[1].tile.shape
    result: Tile = []
    for row, column in product(range(rows), range(columns)):
        total = acc[row * columns + column]
        for k in range(inner):
            a, b = left[row * inner + k], right[k * columns + column]
            if op.operands[0].tile.dtype == f32:
                a, b = floats.to_tf32(a), floats.to_tf32(b)
            total += a * b
            if op.result.tile.dtype == f32:
                total = floats.to_f32(total)
        result.append(total)
    return result
