"""Ranges of the elements of small tiles, each for itself: what `interval_runs` computes an operation with.

What is known of a value is one range for all its elements, or, for a tile of at most `ELEMENTS`, a range for each. `arange(4)`
is `0, 1, 2, 3`; moves take elements to where they are; other operations combine elements of the same index, by the rules of
`ir.facts.range_facts`. So `max(arange(8).reshape((4, 2)), axis=1)` is `1, 3, 5, 7`, and a scan of constants is a constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from tilec.ir.core import Op, Value
from tilec.ir.facts.range_facts import Range, arithmetic, exactly, join, within
from tilec.ir.ops import Binary, Broadcast, Butterfly, Cast, Compare, Iota, Permute, Reduce, Reshape, Select, Sort, Take, Unary
from tilec.ir.types import TileType
from tilec.passes.analysis.ranges import RangeAnalysis
from tilec.passes.analysis.selected_ranges import selected
from tilec.passes.prover.prefix_sums import moved

ELEMENTS: Final = 32  # limit on the elements of a tile that are distinguished

Known = Range | tuple[Range, ...]


def whole(known: Known) -> Range:
    """One range for all elements."""
    if isinstance(known, Range):
        return known
    found = known[0]
    for one in known[1:]:
        found = join(found, one)
    return found


def both(left: Known, right: Known) -> Known:
    """What is known of a value that has either."""
    if isinstance(left, Range) and isinstance(right, Range):
        return join(left, right)
    count = len(right) if isinstance(left, Range) else len(left)
    return tuple(join(a, b) for a, b in zip(each(left, count), each(right, count), strict=True))


def each(known: Known, count: int) -> Sequence[Range]:
    """The range of each of N elements."""
    return [known] * count if isinstance(known, Range) else known


class Elements(Mapping[Value, Range]):
    """What is known of one element of the tiles of a shape, by its number in row-major order, and of all elements of others."""

    def __init__(self, known: Mapping[Value, Known], shape: tuple[int, ...] = (), number: int = 0) -> None:
        self._known, self._shape, self._number = known, shape, number

    def __getitem__(self, value: Value) -> Range:
        known = self._known[value]
        if isinstance(known, Range):
            return known
        return known[self._number] if value.tile.shape == self._shape else whole(known)

    def __iter__(self) -> Iterator[Value]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def computed(analysis: RangeAnalysis, op: Op, known: Mapping[Value, Known]) -> list[Known]:
    """What is known of the results of an operation without regions. Nothing is known of floats: a conversion to one rounds, so
    that it may make different integers equal, and the bits of negative floats fall where these rise."""
    found = _of_results(analysis, op, known)
    return [one if is_numbers(value) else analysis.top(value) for value, one in zip(op.results, found, strict=True)]


def _of_results(analysis: RangeAnalysis, op: Op, known: Mapping[Value, Known]) -> list[Known]:
    operands = [known[value] for value in op.operands]
    if isinstance(op, Select | Compare) or (isinstance(op, Binary | Unary | Cast) and _told_apart(operands)):
        return [_by_element(analysis, op, known, operands)]
    if isinstance(op, Cast) and _is_size(op):
        return [Range(0, op.result.tile.dtype.integer_range()[1])]
    if isinstance(op, Iota) and 1 < op.result.tile.size <= ELEMENTS:
        return [tuple(map(exactly, range(op.result.tile.size)))]
    found = _rearranged(op, operands) if _told_apart(operands) else None
    return found if found is not None else list(analysis.transfer(op, [whole(one) for one in operands]))


def _is_size(op: Cast) -> bool:
    """Whether a conversion to an integer is of the size of a float. It rounds toward zero, and NaN gives 0."""
    source = op.operands[0]
    is_abs = isinstance(source.owner, Unary) and source.owner.kind == "abs"
    return is_abs and source.tile.dtype.is_float and op.result.tile.dtype.is_integer


def _told_apart(operands: Sequence[Known]) -> bool:
    return any(not isinstance(one, Range) for one in operands)


def _by_element(analysis: RangeAnalysis, op: Op, known: Mapping[Value, Known], operands: Sequence[Known]) -> Known:
    shape = op.result.tile.shape
    if not _told_apart(operands):
        return _element(analysis, op, Elements(known))
    return tuple(_element(analysis, op, Elements(known, shape, number)) for number in range(op.result.tile.size))


def _element(analysis: RangeAnalysis, op: Op, known: Elements) -> Range:
    if isinstance(op, Select):
        condition, on_true, on_false = (known[value] for value in op.operands)
        if condition.constant is not None:
            return on_true if condition.constant else on_false
        return selected(op, known, analysis.refined_result)
    operands = [known[value] for value in op.operands]
    if isinstance(op, Compare):
        return _compared(op.kind, *operands) if not op.operands[0].tile.dtype.is_float else Range(0, 1)
    return analysis.refined_result(op, operands)


def _compared(kind: str, a: Range, b: Range) -> Range:
    if kind in ("gt", "ge"):
        a, b, kind = b, a, "lt" if kind == "gt" else "le"
    if kind in ("lt", "le"):
        always = a.high < b.low if kind == "lt" else a.high <= b.low
        never = a.low >= b.high if kind == "lt" else a.low > b.high
    else:
        same = a.constant is not None and a.constant == b.constant
        apart = a.high < b.low or b.high < a.low
        always, never = (same, apart) if kind == "eq" else (apart, same)
    return exactly(1) if always else exactly(0) if never else Range(0, 1)


def _rearranged(op: Op, operands: Sequence[Known]) -> list[Known] | None:
    match op:
        case Reshape() | Broadcast() | Permute() | Butterfly():
            source = operands[0]
            assert not isinstance(source, Range)
            numbers = moved(op, np.arange(len(source)).reshape(op.operands[0].tile.shape)).reshape(-1)
            if len(numbers) > ELEMENTS:
                return None
            return [source[int(numbers[0])] if len(numbers) == 1 else tuple(source[int(number)] for number in numbers)]
        case Reduce():
            return [_reduced(op, operands[0])]
        case Take():
            return [_taken(op, operands[0], operands[1])] if op.result.tile.size <= ELEMENTS else None
        case Sort():
            return _sorted(op, operands)
        case _:
            return None


def _rows(shape: tuple[int, ...], axis: int) -> Sequence[Sequence[int]]:
    """The numbers of the elements along an axis, for each index on the others."""
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    return np.moveaxis(numbers, axis, -1).reshape(-1, shape[axis]).tolist()


def _reduced(op: Reduce, source: Known) -> Known:
    tile = op.operands[0].tile
    of_all = each(source, tile.size)
    found = [reduced_row(op, [of_all[number] for number in row]) for row in _rows(tile.shape, op.axis)]
    return found[0] if len(found) == 1 else tuple(found)


def reduced_row(op: Reduce, row: Sequence[Range]) -> Range:
    if op.kind.startswith("arg"):
        # The element with the largest low end, or a larger one, is the largest.
        if op.kind == "argmax":
            limit = max(one.low for one in row)
            possible = [k for k, one in enumerate(row) if one.high >= limit]
        else:
            limit = min(one.high for one in row)
            possible = [k for k, one in enumerate(row) if one.low <= limit]
        if all(row[k].constant is not None for k in possible):
            possible = possible[:1]  # they are equal, and the first of them counts
        return exactly(possible[0]) if len(possible) == 1 else Range(possible[0], possible[-1])
    total = row[0]
    for one in row[1:]:
        total = arithmetic("add" if op.kind == "sum" else op.kind, total, one) or Range(*op.result.tile.dtype.integer_range())
    low, high = op.result.tile.dtype.integer_range()
    return total if low <= total.low and total.high <= high else Range(low, high)  # sums wrap


def _taken(op: Take, source: Known, indices: Known) -> Known:
    shape, extent = op.operands[0].tile.shape, op.operands[0].tile.shape[op.axis]
    of_all = each(source, op.operands[0].tile.size)
    rows = [[of_all[number] for number in row] for row in _rows(shape, op.axis)]
    found: dict[int, Range] = {}
    of_indices = each(indices, op.result.tile.size)
    for source_row, row in zip(rows, _rows(op.result.tile.shape, op.axis), strict=True):
        for number in row:
            inside = within(of_indices[number], 0, extent - 1) or Range(0, extent - 1)  # an obligation of the operation
            found[number] = whole(tuple(source_row[inside.low : inside.high + 1]))
    return found[0] if len(found) == 1 else tuple(found[number] for number in range(len(found)))


def _sorted(op: Sort, operands: Sequence[Known]) -> list[Known]:
    """The `k`-th of sorted numbers is at least the `k`-th of their low ends, and at most that of their high ends. The order of
    other tiles is not followed."""
    found: list[Known] = []
    for number, (value, known) in enumerate(zip(op.operands, operands, strict=True)):
        of_all, result = each(known, value.tile.size), dict[int, Range]()
        for row in _rows(value.tile.shape, op.axis):
            ranges = [of_all[k] for k in row]
            lows = sorted((one.low for one in ranges), reverse=op.descending)
            highs = sorted((one.high for one in ranges), reverse=op.descending)
            anywhere = whole(tuple(ranges))
            for k, low, high in zip(row, lows, highs, strict=True):
                inside = within(anywhere, low, high) if not number else anywhere
                result[k] = inside or anywhere
        found.append(
            tuple(result[k] for k in range(len(result))) if value.tile.size <= ELEMENTS else whole(tuple(result.values()))
        )
    return found


def is_numbers(value: Value) -> bool:
    """Whether a value is a tile of integers or booleans."""
    return isinstance(value.type, TileType) and not value.type.dtype.is_float
