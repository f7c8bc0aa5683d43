"""Which rows of a tile each block of a pair needs, from the tile IR.

A product of a pair has rows 0 to M/2-1 of its result in the block of rank 0 and the others in that of rank 1, each from its own
rows of the left operand. Its first columns are from rows of the right operand in the block of rank 0 (PTX ISA, `tcgen05.mma`,
`.cta_group::2`). So a tile has a side, `left` or `right`, if it is an operand that is loaded for a product, and the axes that
hold its rows; a tile that is stored is `left` if it has the rows of a product's result.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final, Literal

from tilec.ir.core import Function, Op, Value
from tilec.ir.ops import Butterfly, Cast, For, Load, MemoryOp, Mma, Permute, Reduce, Reshape

Side = Literal["left", "right"]
LEFT: Final = "left"
RIGHT: Final = "right"
SIDES: Final[tuple[tuple[Side, int], ...]] = ((LEFT, 0), (RIGHT, 1))
"""The operands of a product, each with the axis of its rows: the right one is multiplied as rows by columns."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The side of a tile, and the number of its leading axes that count its rows, the last of them fastest."""

    side: Side
    axes: int


def rows_of(function: Function, op: MemoryOp) -> Rows | None:
    """The rows of the tile that an operation loads or stores; None if they are not those of exactly one side of products."""
    if isinstance(op, Load):
        found = set(_loaded(function, op))
        return found.pop() if len(found) == 1 else None
    return Rows(LEFT, 1) if op.opcode == "store" and _row_axis(op.tile, {}) == 0 else None


def halves(rows: Rows, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """The axis that divides the rows of a tile of this shape into halves, and the extent of a half; None for an odd one."""
    axis = next((axis for axis in range(rows.axes) if shape[axis] > 1), None)
    return (axis, shape[axis] // 2) if axis is not None and shape[axis] % 2 == 0 else None


def _loaded(function: Function, load: Load) -> list[Rows | None]:
    """The rows for each use of a loaded tile, followed to its products."""
    found: list[Rows | None] = []
    users = [op for op in function.body.walk() if any(value is load.result for value in op.operands)]
    followed = dict.fromkeys(users, 0)
    products = [op for op in function.body.walk() if isinstance(op, Mma)]
    for product in products:
        for side, axis in SIDES:
            source, rows, through = _source(product.operands[axis], axis)
            if source is load:
                found.append(Rows(side, rows) if rows is not None and len(product.result.tile.shape) == 2 else None)
                followed |= {op: 1 for op in (*through, product) if op in followed}
    return found if all(followed.values()) else [*found, None]


def _source(operand: Value, axis: int) -> tuple[Op | None, int | None, list[Op]]:
    """The operation that an operand is loaded by, the number of leading axes that count its rows there (None: its rows are
    counted by other axes), and the operations in between."""
    through: list[Op] = []
    axes: int | None = None
    while isinstance(op := operand.owner, Permute | Reshape | Cast):
        through.append(op)
        source, result = op.operands[0].tile.shape, operand.tile.shape
        if axes is not None and not isinstance(op, Cast):
            axis = -1  # what follows a division of rows into axes is not known
        elif isinstance(op, Permute):
            axis = op.axes[axis] if axis >= 0 else -1
        elif isinstance(op, Reshape):
            leading = [n for n in range(1, len(source)) if prod(source[:n]) == result[0] and source[n:] == result[1:]]
            axes, axis = (leading[0], axis) if axis == 0 and leading else (None, -1)
        operand = op.operands[0]
    known = axis == 0 and len(operand.tile.shape) > 1
    return op if isinstance(op, Op) else None, (axes or 1) if known else None, through


def _row_axis(value: Value, seen: dict[Value, int | None]) -> int | None:
    """The axis of a value that has the rows of a product's result; None if that is not known. `seen` keeps those of others."""
    if value not in seen:
        seen[value] = None
        seen[value] = _row_axis_of(value, seen)
    return seen[value]


def _row_axis_of(value: Value, seen: dict[Value, int | None]) -> int | None:
    op = value.owner
    if isinstance(op, Mma):
        return 0 if len(value.tile.shape) == 2 else None
    if isinstance(op, For):
        return _row_axis(op.regions[0].ops[-1].operands[op.results.index(value)], seen)
    if not isinstance(op, Op) or not op.operands:
        return None
    if op.elementwise:
        known = {axis for operand in op.operands if (axis := _row_axis(operand, seen)) is not None}
        return known.pop() if len(known) == 1 else None
    axis = _row_axis(op.operands[0], seen) if isinstance(op, Butterfly | Permute | Reduce | Reshape) else None
    if axis is None:
        return None
    if isinstance(op, Permute):
        return op.axes.index(axis)
    if isinstance(op, Butterfly):
        return None if op.axis == axis else axis
    if isinstance(op, Reduce):
        return None if op.axis == axis else axis - (op.axis < axis)
    return 0 if axis == 0 and op.operands[0].tile.shape[0] == value.tile.shape[0] else None
