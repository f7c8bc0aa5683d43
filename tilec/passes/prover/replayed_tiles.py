"""What operations give for tiles of which some elements may be unknown: takes and returns lists of elements in row-major order.

An element is an integer, or None if it is not known. Arithmetic is `tilec.ir.facts.meaning`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Final

from tilec.ir.facts.meaning import integer_binary, integer_cast
from tilec.ir.ops import Broadcast, Butterfly, Permute, Reduce, Reshape, Sort, Take
from tilec.ir.types import DType

Tile = list[int | None]
ZERO_STAYS: Final = frozenset({"and", "mul", "mulhi", "shl", "shr", "floordiv", "mod"})
"""Operations that give 0 if their left operand is 0, whatever the right one is."""
EITHER_ZERO: Final = frozenset({"and", "mul", "mulhi"})


def combined(kind: str, left: int | None, right: int | None, dtype: DType) -> int | None:
    """`left kind right`; with one operand unknown, it may still be 0."""
    if left is not None and right is not None:
        return integer_binary(kind, left, right, dtype)
    is_zero = (left == 0 and kind in ZERO_STAYS) or (right == 0 and kind in EITHER_ZERO)
    return 0 if is_zero else None


def sorted_tiles(op: Sort, tiles: Sequence[Tile]) -> list[Tile]:
    """The tiles in the order of the first one's elements along the axis; unknown where one of these is."""
    shape = op.operands[0].tile.shape
    extent, inner = shape[op.axis], prod(shape[op.axis + 1 :])
    found: list[Tile] = [[None] * len(tile) for tile in tiles]
    for first in range(0, prod(shape), extent * inner):
        for start in range(first, first + inner):
            slots = range(start, start + extent * inner, inner)
            keys = [key for slot in slots if (key := tiles[0][slot]) is not None]
            if len(keys) == extent:
                sign = -1 if op.descending else 1
                order = sorted(range(extent), key=lambda at, keys=keys, sign=sign: sign * keys[at])
                for tile, target in zip(tiles, found, strict=True):
                    target[start : start + extent * inner : inner] = [tile[slots[at]] for at in order]
    return found


def element_rows(op: Reduce, tile: Tile) -> Iterator[Tile]:
    """The elements that each element of the result is computed from."""
    shape = op.operands[0].tile.shape
    extent, inner = shape[op.axis], prod(shape[op.axis + 1 :])
    for flat in range(prod(shape) // extent):
        start = flat // inner * extent * inner + flat % inner
        yield tile[start : start + extent * inner : inner]


def reduced(op: Reduce, tile: Tile) -> Tile:
    """The elements along the axis as one; None where one of them is unknown."""
    dtype = op.result.tile.dtype
    found: Tile = []
    for row in element_rows(op, tile):
        known = [a for a in row if a is not None]
        if len(known) < len(row):
            found.append(None)
        elif op.kind == "sum":
            found.append(integer_cast(sum(known), dtype))
        else:
            best = max(known) if op.kind.endswith("max") else min(known)
            found.append(known.index(best) if op.kind.startswith("arg") else best)
    return found


def taken(op: Take, tile: Tile, indices: Tile) -> Tile:
    """The elements at the indices along the axis; one outside counts as the last position."""
    extent, inner = op.operands[0].tile.shape[op.axis], prod(op.result.tile.shape[op.axis + 1 :])
    row = inner * op.result.tile.shape[op.axis]
    found: Tile = []
    for flat, index in enumerate(indices):
        slot = None if index is None else index if 0 <= index < extent else extent - 1
        found.append(None if slot is None else tile[(flat // row * extent + slot) * inner + flat % inner])
    return found


def moved(op: Broadcast | Butterfly | Permute | Reshape, tile: Tile) -> Tile:
    """The same elements at other positions."""
    source, target = op.operands[0].tile.shape, op.result.tile.shape
    if isinstance(op, Reshape):
        return tile
    if isinstance(op, Broadcast) and len(tile) == 1:
        return tile * prod(target)
    found: Tile = []
    for position in product(*map(range, target)):
        if isinstance(op, Permute):
            source_position = [position[op.axes.index(axis)] for axis in range(len(source))]
        elif isinstance(op, Butterfly):
            source_position = [c ^ op.mask if axis == op.axis else c for axis, c in enumerate(position)]
        else:
            source_position = [0 if extent == 1 else coordinate for extent, coordinate in zip(source, position, strict=True)]
        flat_index = 0
        for extent, coordinate in zip(source, source_position, strict=True):
            flat_index = flat_index * extent + coordinate
        found.append(tile[flat_index])
    return found
