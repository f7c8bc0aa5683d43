"""Pairs of blocks: each of the two blocks of a cluster computes half of the rows of a tile.

In: a function whose tiles are those of one block. Out: the same for a pair. A tile that has rows of a product's result has half
as many; its loads and stores begin at the block's own half:

    offset + rank * half                                     for each access of such a tile, on the axis of its rows

Rows are followed from the result of every `mma`, to and from every value that must have them too: through arithmetic, and axes
that an operation keeps. Whatever else the kernel computes, both blocks compute. A kernel is refused if it computes one row from
another, or from the number of a row, or if both blocks would write the same.

The sum of an offset may wrap only where the offset is less than `half` below 2^31. No tensor reaches that far (`MAX_DIM`), so
that a clipped access moves nothing there, whether it wraps or not; one that is not clipped is proven to be in bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilec.ir.core import Block, Effect, Function, Op, Value
from tilec.ir.ops import (
    Broadcast,
    Butterfly,
    Cast,
    Constant,
    For,
    If,
    Load,
    Mma,
    Permute,
    Reduce,
    Reshape,
    Store,
    Yield,
    prints,
)
from tilec.ir.ops.pair_ops import ClusterRank
from tilec.ir.types import TMEM_LANES, TileType, i32
from tilec.passes.schedule.pipelining.staged_products import Emitter
from tilec.target.schedule import PAIR

ValueAxis = tuple[Value, int]
"""An axis of a value."""


def problem(function: Function) -> str | None:
    """Why the rows of the kernel's tiles cannot be halved; None if they can."""
    products = [op for op in function.body.walk() if isinstance(op, Mma)]
    if not products:
        return "it multiplies no matrices"
    if prints(function):
        return "it prints, and a block of a pair knows the positions in its half only"
    axes, reason = _followed(function)
    if reason is not None:
        return reason
    rows = sorted({value.tile.shape[axis] for value, axis in axes.items()})
    if len(rows) > 1 or rows[0] % (PAIR * TMEM_LANES):
        return f"its products have {' and '.join(map(str, rows))} rows; a pair has a multiple of {PAIR * TMEM_LANES}"
    for op in function.body.walk():
        if op.effect is Effect.ATOMIC or (op.effect is Effect.WRITE and not (isinstance(op, Store) and op.tile in axes)):
            return f"`{op.opcode}`: both blocks of a pair would write what has no rows of the product"
    return None


def halve(function: Function) -> Function:
    """Leave a block its half of the rows, in place. A function of pairs stays unchanged."""
    if function.cluster > 1:
        return function
    axes, reason = _followed(function)
    assert reason is None, reason
    half = next(value.tile.shape[axis] for value, axis in axes.items()) // PAIR
    function.cluster = PAIR
    head = Emitter()
    rank = head.add(ClusterRank(), TileType(i32))
    first = head.binary("mul", rank, head.number(half))
    first.name = "first"
    _move_accesses(function.body, axes, first)
    for value, axis in axes.items():
        shape = list(value.tile.shape)
        shape[axis] = half
        value.type = TileType(value.tile.dtype, tuple(shape))
    function.body.ops[:0] = head.ops
    return function


def rank_of(function: Function) -> Value:
    """The rank of the block in its pair."""
    return next(op.result for op in function.body.ops if isinstance(op, ClusterRank))


def _followed(function: Function) -> tuple[dict[Value, int], str | None]:
    """The axis of the rows of each value that has them; and the first reason why they cannot be halved."""
    axes: dict[Value, int] = {op.result: 0 for op in function.body.walk() if isinstance(op, Mma)}
    ops = list(function.body.walk())
    while True:
        before = len(axes)
        for op in ops:
            for sides in _same_rows(op):
                known = [axes[value] == axis for value, axis in sides if value in axes]
                if any(known) and not all(known):
                    return axes, f"`{op.opcode}` joins rows and columns"
                if known and all(known):
                    axes |= {value: axis for value, axis in sides if value not in axes}
        if len(axes) == before:
            break
    for op in ops:
        reason = _reason(op, axes)
        if reason is not None:
            return axes, f"`{op.opcode}` {reason}"
    return axes, None


def _same_rows(op: Op) -> Iterator[list[ValueAxis]]:
    """Groups of axes that have rows together: of operands, results and arguments of regions."""
    if op.elementwise:
        values = [*op.operands, *op.results]
        yield from ([(value, axis) for value in values] for axis in range(op.result.tile.rank))
    elif isinstance(op, Mma):
        yield [(op.operands[0], 0), (op.operands[2], 0), (op.result, 0)]
    elif isinstance(op, Broadcast):
        kept = [axis for axis, extent in enumerate(op.operands[0].tile.shape) if extent == op.result.tile.shape[axis]]
        yield from ([(op.operands[0], axis), (op.result, axis)] for axis in kept)
    elif isinstance(op, Permute):
        yield from ([(op.operands[0], axis), (op.result, position)] for position, axis in enumerate(op.axes))
    elif isinstance(op, Butterfly):
        yield from _all_axes(op.operands[0], op.result)
    elif isinstance(op, Reduce):
        kept = [axis for axis in range(op.operands[0].tile.rank) if axis != op.axis]
        yield from ([(op.operands[0], axis), (op.result, position)] for position, axis in enumerate(kept))
    elif isinstance(op, Reshape):
        yield from ([(op.operands[0], axis), (op.result, other)] for axis, other in _kept_axes(op))
    elif isinstance(op, For):
        yielded = op.regions[0].ops[-1].operands
        for values in zip(op.initial, op.regions[0].arguments[1:], yielded, op.results, strict=True):
            yield from _all_axes(*values)
    elif isinstance(op, If):
        for values in zip(op.results, *(region.ops[-1].operands for region in op.regions), strict=True):
            yield from _all_axes(*values)


def _all_axes(*values: Value) -> Iterator[list[ValueAxis]]:
    rank = values[0].tile.rank if isinstance(values[0].type, TileType) else 0
    yield from ([(value, axis) for value in values] for axis in range(rank))


def _kept_axes(op: Reshape) -> Iterator[tuple[int, int]]:
    """Axes that the reshape keeps: of one extent, with as many elements on the axes before."""
    source, result = op.operands[0].tile.shape, op.result.tile.shape
    for axis, extent in enumerate(source):
        for other, other_extent in enumerate(result):
            if extent == other_extent > 1 and prod(source[:axis]) == prod(result[:other]):
                yield axis, other


def _reason(op: Op, axes: dict[Value, int]) -> str | None:
    """Why an operation does not work on half of the rows; None if it does."""
    rows = [value for value in (*op.operands, *op.results) if value in axes]
    if not rows or op.elementwise or isinstance(op, Constant | Broadcast | Permute | Load | Store | For | If | Yield):
        return None
    if isinstance(op, Mma):
        return (
            "takes rows of a product as its right operand" if op.operands[1] in axes or len(op.result.tile.shape) > 2 else None
        )
    if isinstance(op, Reduce | Butterfly):
        return "goes across the rows" if axes.get(op.operands[0]) == op.axis else None
    if isinstance(op, Reshape) and all(value in axes for value in (op.operands[0], op.result)):
        return None
    return "does not work on a half of the rows"


def _move_accesses(block: Block, axes: dict[Value, int], first: Value) -> None:
    """Loads and stores of tiles with rows begin at the block's own rows."""
    ops: list[Op] = []
    for op in block.ops:
        for region in op.regions:
            _move_accesses(region, axes, first)
        if isinstance(op, Load | Store) and op.tile in axes:
            out, position = Emitter(), len(op.operands) - len(op.indices) + axes[op.tile]
            offset = op.operands[position]
            own = first if offset.type == first.type else out.add(Cast(operands=[first]), offset.tile)
            moved = out.binary("add", offset, own)
            moved.fits = True
            op.operands[position] = moved
            ops += out.ops
        ops.append(op)
    block.ops = ops
