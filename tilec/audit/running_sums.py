"""Recognises a tile of running sums: each element is the sum of the elements before it, or after it, along an axis of one tile.

In: a value of the tile IR, which has additions and moves of elements but no scan. Out: the tile that is summed, or None. For
each element of the value, the set of the elements that are added to it is computed as the bits of an integer, by the additions
themselves. An element that is added twice, or a choice that depends on anything but the position, has no such set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Final

from tilec.ir.core import Op, Value
from tilec.ir.ops import Binary, Broadcast, Butterfly, Compare, Constant, Iota, Permute, Reduce, Reshape, Select
from tilec.ir.types import TileType

LARGEST: Final = 8192
"""Elements of a tile whose sums are recognised: the sets of 8192 have 8 MiB."""
MOST_VALUES: Final = 400
"""Values that one sum is computed from."""
Sets = list[int | None]
COMPARISONS: Final[dict[str, Callable[[int, int], bool]]] = {
    "eq": int.__eq__, "ne": int.__ne__, "lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunningSum:
    """Sums of the elements of `tile` before each one along `axis` (after it, if `backward`), and of that one if `inclusive`."""

    tile: Value
    axis: int
    backward: bool
    inclusive: bool


def running_sum(value: Value, order: Mapping[Op, int]) -> RunningSum | None:
    """What a value sums; `order` is that of the operations in the program."""
    shape = value.tile.shape
    if not shape or value.tile.size > LARGEST or not value.tile.dtype.is_integer:
        return None
    parts = _parts(value)
    if parts is None:
        return None
    inner, summed = parts
    if not isinstance(summed.owner, Op) or not any(isinstance(one.owner, Butterfly) for one in inner):
        return None
    tile = next((one for one in (summed, *inner) if one.tile.shape == shape and _is_reshape_of(one, summed)), None)
    if tile is None or tile is value:
        return None
    sets = _sets(value, summed, sorted(inner, key=lambda one: order[_owner(one)]))
    for axis, extent in enumerate(shape):
        for backward, inclusive in product((False, True), repeat=2) if extent > 1 else ():
            if sets == _expected(shape, axis, backward, inclusive):
                return RunningSum(tile, axis, backward, inclusive)
    return None


def _owner(value: Value) -> Op:
    assert isinstance(value.owner, Op)
    return value.owner


def _is_reshape_of(value: Value, source: Value) -> bool:
    while value is not source and isinstance(value.owner, Reshape):
        value = value.owner.operands[0]
    return value is source


def _parts(value: Value) -> tuple[list[Value], Value] | None:
    """The additions, moves and choices that a value is computed by, and the only other value that enters them; None if there
    are several."""
    inner, others, pending = dict[Value, None](), dict[Value, None](), [value]
    while pending:
        one = pending.pop()
        if one in inner or one in others or _by_position(one) is not None:
            continue
        sources = _sources(one)
        (inner if sources else others)[one] = None
        pending += sources
        if len(others) > 1 or len(inner) > MOST_VALUES:
            return None
    return (list(inner), next(iter(others))) if others else None


def _sources(value: Value) -> list[Value]:
    """The operands whose sums a value consists of; none for a value that is no sum of its operands."""
    op = value.owner
    match op:
        case Reshape() | Broadcast() | Permute() | Butterfly():
            return list(op.operands)
        case Reduce() if op.kind == "max":
            return list(op.operands)
        case Binary() if op.kind == "add":
            return list(op.operands)
        case Select() if _by_position(op.operands[0]) is not None:
            return list(op.operands[1:])
        case _:
            return []


def _by_position(value: Value) -> list[int] | None:
    """The elements of a tile that depend on their positions alone; None for other tiles."""
    op = value.owner
    if not isinstance(op, Op) or not isinstance(value.type, TileType) or value.tile.size > LARGEST or value.tile.dtype.is_float:
        return None
    match op:
        case Constant():
            return [int(op.value)] * value.tile.size
        case Iota():
            return list(range(value.tile.size))
        case Reshape() | Broadcast():
            source = _by_position(op.operands[0])
            return None if source is None else [source[at] for at in _origins(op)]
        case Compare() | Binary() if isinstance(op, Compare) or op.kind == "and":
            if op.operands[0].tile.dtype.is_float:
                return None
            left, right = map(_by_position, op.operands)
            if left is None or right is None:
                return None
            if isinstance(op, Binary):
                return [a & b for a, b in zip(left, right, strict=True)]
            return [int(COMPARISONS[op.kind](a, b)) for a, b in zip(left, right, strict=True)]
        case _:
            return None


def _sets(value: Value, summed: Value, inner: list[Value]) -> Sets:
    """For each element of a value, the elements of `summed` that it is the sum of; None where it is no such sum."""
    last_use = {operand: index for index, one in enumerate(inner) for operand in _owner(one).operands}
    known: dict[Value, Sets] = {summed: [1 << element for element in range(summed.tile.size)]}
    for index, one in enumerate(inner):
        known[one] = _combined(_owner(one), known)
        for operand in _owner(one).operands:
            if last_use[operand] == index and operand is not value:
                known.pop(operand, None)
    return known[value]


def _combined(op: Op, known: Mapping[Value, Sets]) -> Sets:
    if isinstance(op, Select):
        condition = _by_position(op.operands[0])
        assert condition is not None
        on_true, on_false = (_set_of(operand, known) for operand in op.operands[1:])
        return [a if c else b for c, a, b in zip(condition, on_true, on_false, strict=True)]
    if isinstance(op, Binary):
        return [_union(a, b) for a, b in zip(*(_set_of(operand, known) for operand in op.operands), strict=True)]
    source = _set_of(op.operands[0], known)
    if isinstance(op, Reduce):
        return _of_equals(op, source)
    return [source[at] for at in _origins(op)]


def _set_of(value: Value, known: Mapping[Value, Sets]) -> Sets:
    """Zeros are the sum of nothing, and other numbers are no sum."""
    if value in known:
        return known[value]
    numbers = _by_position(value)
    assert numbers is not None
    return [None if number else 0 for number in numbers]


def _union(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None or left & right else left | right


def _of_equals(op: Reduce, source: Sets) -> Sets:
    """The largest of equal numbers is each of them."""
    shape = op.operands[0].tile.shape
    extent, inner = shape[op.axis], prod(shape[op.axis + 1 :])
    found: Sets = []
    for outer in range(prod(shape[: op.axis])):
        for column in range(inner):
            start = outer * extent * inner + column
            line = {source[start + step * inner] for step in range(extent)}
            found.append(line.pop() if len(line) == 1 else None)
    return found


def _origins(op: Op) -> list[int]:
    """For each element of a result in row-major order, the place of the operand's element that it is."""
    source, target = op.operands[0].tile.shape, op.result.tile.shape
    if isinstance(op, Reshape):
        return list(range(prod(target)))
    found: list[int] = []
    for position in product(*map(range, target)):
        if isinstance(op, Permute):
            origin = [position[op.axes.index(axis)] for axis in range(len(position))]
        elif isinstance(op, Butterfly):
            origin = [at ^ op.mask if axis == op.axis else at for axis, at in enumerate(position)]
        else:
            origin = [0 if e == 1 else at for e, at in zip(source, position[len(position) - len(source) :], strict=True)]
        element = 0
        for extent, at in zip(source, origin, strict=True):
            element = element * extent + at
        found.append(element)
    return found


def _expected(shape: tuple[int, ...], axis: int, backward: bool, inclusive: bool) -> Sets:
    """The sets of a running sum: along each line of elements, those that came before."""
    stride, extent = prod(shape[axis + 1 :]), shape[axis]
    found: Sets = [0] * prod(shape)
    for start in range(prod(shape)):
        if start // stride % extent:
            continue  # not the first of a line
        added = 0
        for step in reversed(range(extent)) if backward else range(extent):
            element = start + step * stride
            found[element] = added | 1 << element if inclusive else added
            added |= 1 << element
    return found
