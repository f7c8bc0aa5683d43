"""Finds the values of a kernel that are prefix sums of a tile along an axis.

The tile IR has no scan: an author's `cumsum`, or a `scan` that adds, is a tree of additions of tiles whose elements changed
places. In: a function. Out: for each value whose every element is the sum of the elements of one tile before it along an axis,
or after it, that tile and axis.

The additions are followed element by element. Each element of a value is the sum of a run of elements of the tile, numbered
along the axis; two runs side by side are one. A choice between two values is followed where its condition is a constant of each
position, and a maximum where all its operands are the same run. So it does not matter how the tree was built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.ir.core import Function, Op, Value
from tilec.ir.ops import Binary, Broadcast, Butterfly, Compare, Constant, Iota, Permute, Reduce, Reshape, Select
from tilec.ir.types import TileType

Numbers = NDArray[np.int64]
MAX_ELEMENTS: Final = 1 << 14  # larger tiles are not followed
MAX_VALUES: Final = 256
"""Values that are followed per tile and axis: a scan of 16,384 elements has about a hundred."""

_COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}


@dataclass(frozen=True, slots=True)
class PrefixSum:
    """The sums of the elements of `tile` before each along `axis`, or after each if `reverse`; each element included if `own`.
    `number` is the same for the sums of one tile in one direction."""

    tile: Value
    axis: int
    reverse: bool
    own: bool
    number: int


@dataclass(frozen=True, slots=True)
class _Runs:
    """Per element of a value, the sum of elements `start <= e < end` of a tile; 0 to 0 for no element, and `end < start` for
    what is no such sum."""

    start: Numbers
    end: Numbers


@dataclass(slots=True)
class PrefixSums:
    """The prefix sums of a function, and the additions that compute them."""

    sums: dict[Value, PrefixSum] = field(default_factory=dict[Value, PrefixSum])
    additions: set[Op] = field(default_factory=set[Op])
    _numbers: dict[tuple[Value, int, bool], int] = field(default_factory=dict[tuple[Value, int, bool], int])
    _tables: dict[Value, Numbers | None] = field(default_factory=dict[Value, "Numbers | None"])

    def find(self, function: Function) -> PrefixSums:
        """Fill the tables from a function."""
        ops = list(function.body.walk())
        followed, roots = set[Value](), set[Value]()
        for op in ops:
            if not isinstance(op, Butterfly):
                continue
            tiles = [*_through_reshapes(op.operands[0])]
            is_whole = isinstance(tiles[-1].owner, Butterfly | Permute) or any(tile in self.sums for tile in tiles)
            if tiles[0] in followed and not is_whole:
                continue  # a part of a sum
            for tile in tiles:
                if tile not in roots and tile.tile.dtype.is_integer and isinstance(tile.owner, Op) and _is_small(tile.owner):
                    roots.add(tile)
                    followed |= self._follow(ops, tile)
        return self

    def _follow(self, ops: list[Op], tile: Value) -> set[Value]:
        """Add the sums of one tile; every value that is computed from it."""
        shape, followed = tile.tile.shape, {tile}
        for axis, extent in enumerate(shape):
            if extent == 1:
                continue
            along_last = (*shape[:axis], *shape[axis + 1 :], extent)
            numbers = np.moveaxis(np.arange(tile.tile.size).reshape(along_last), -1, axis)
            runs = {tile: _Runs(numbers, numbers + 1)}
            for op in ops:
                if len(runs) == MAX_VALUES or not any(operand in runs for operand in op.operands):
                    continue
                found = self._transferred(op, runs) if _is_small(op) else None
                if found is None:
                    continue
                runs[op.result] = found
                kind = _direction(found, numbers, extent) if op.result.tile.shape == shape else None
                if kind is not None:
                    reverse, own = kind
                    self.sums[op.result] = PrefixSum(tile, axis, reverse, own, self._number(tile, axis, reverse))
            followed |= set(runs)
            if any(found.tile is tile and found.axis == axis for found in self.sums.values()):
                self.additions |= {value.owner for value in runs if isinstance(value.owner, Binary)}
        return followed

    def _number(self, tile: Value, axis: int, reverse: bool) -> int:
        return self._numbers.setdefault((tile, axis, reverse), len(self._numbers))

    def _transferred(self, op: Op, runs: Mapping[Value, _Runs]) -> _Runs | None:
        """The runs of a result; None if they are not followed."""
        match op:
            case Reshape() | Broadcast() | Permute() | Butterfly():
                source = runs[op.operands[0]]
                return _Runs(moved(op, source.start), moved(op, source.end))
            case Reduce() if op.kind in ("max", "min"):
                return _common(runs[op.operands[0]], op.axis)
            case Binary() if op.kind == "add":
                left, right = (self._runs_of(operand, runs) for operand in op.operands)
                return None if left is None or right is None else _joined(left, right)
            case Select() if op.operands[0] not in runs:
                condition = self._table(op.operands[0])
                left, right = (self._runs_of(operand, runs) for operand in op.operands[1:])
                if condition is None or left is None or right is None:
                    return None
                return _Runs(np.where(condition, left.start, right.start), np.where(condition, left.end, right.end))
            case _:
                return None

    def _runs_of(self, value: Value, runs: Mapping[Value, _Runs]) -> _Runs | None:
        """The runs of an operand: a tile of zeros is the sum of nothing."""
        if value in runs:
            return runs[value]
        table = self._table(value)
        return None if table is None or table.any() else _Runs(table, table)

    def _table(self, value: Value) -> Numbers | None:
        """The elements of a value that is the same in every execution; None for others."""
        if value not in self._tables:
            self._tables[value] = self._constants(value)
        return self._tables[value]

    def _constants(self, value: Value) -> Numbers | None:
        op = value.owner
        if not isinstance(op, Op) or not _is_small(op) or value.tile.dtype.is_float:
            return None
        if isinstance(op, Constant):
            if not -(2**63) <= op.value < 2**63:
                return None
            return np.full(value.tile.shape, int(op.value), np.int64)
        if isinstance(op, Iota):
            return np.arange(value.tile.size)
        if not isinstance(op, Reshape | Broadcast | Compare | Binary) or op.operands[0].tile.dtype.is_float:
            return None
        tables = [table for operand in op.operands if (table := self._table(operand)) is not None]
        if len(tables) != len(op.operands):
            return None
        if isinstance(op, Compare):
            return _COMPARE[op.kind](*tables).astype(np.int64)
        if isinstance(op, Binary):
            return tables[0] & tables[1] if op.kind == "and" else None
        return moved(op, tables[0])


def _is_small(op: Op) -> bool:
    return len(op.results) == 1 and isinstance(op.result.type, TileType) and op.result.tile.size <= MAX_ELEMENTS


def _through_reshapes(value: Value) -> Iterator[Value]:
    """A value and those that it is a reshape of."""
    yield value
    while isinstance(value.owner, Reshape):
        value = value.owner.operands[0]
        yield value


def _direction(found: _Runs, numbers: Numbers, extent: int) -> tuple[bool, bool] | None:
    """Whether runs are those after each element (else before), and whether they include it; None if they are neither."""
    first = numbers - numbers % extent
    for reverse in (False, True):
        for own in (False, True):
            start = numbers + (0 if own else 1) if reverse else first
            end = first + extent if reverse else numbers + (1 if own else 0)
            expected = _normal(start, end)
            if np.array_equal(found.start, expected.start) and np.array_equal(found.end, expected.end):
                return reverse, own
    return None


def _normal(start: Numbers, end: Numbers) -> _Runs:
    """Runs with one spelling of no element."""
    empty = start == end
    return _Runs(np.where(empty, 0, start), np.where(empty, 0, end))


def _joined(left: _Runs, right: _Runs) -> _Runs:
    """The sum of two sums, where they are of runs side by side."""
    no_left, no_right = left.start == left.end, right.start == right.end
    before, after = (left.end == right.start) & (left.start < left.end), (right.end == left.start) & (right.start < right.end)
    both = (left.start <= left.end) & (right.start <= right.end)
    cases = [no_left, no_right, both & before, both & after]
    start = np.select(cases, [right.start, left.start, left.start, right.start], 1)
    end = np.select(cases, [right.end, left.end, right.end, left.end], 0)
    return _Runs(start, end)


def _common(runs: _Runs, axis: int) -> _Runs:
    """The run that all elements along an axis have."""
    start, end = runs.start.take([0], axis), runs.end.take([0], axis)
    same = ((runs.start == start) & (runs.end == end)).all(axis)
    return _Runs(np.where(same, start.squeeze(axis), 1), np.where(same, end.squeeze(axis), 0))


def moved(op: Reshape | Broadcast | Permute | Butterfly, table: Numbers) -> Numbers:
    """The elements of an operand at their positions in the result."""
    shape = op.result.tile.shape
    match op:
        case Reshape():
            return table.reshape(shape)
        case Broadcast():
            return np.broadcast_to(table, shape)
        case Permute():
            return table.transpose(op.axes)
        case Butterfly():
            return table.take(np.arange(shape[op.axis]) ^ op.mask, op.axis)
