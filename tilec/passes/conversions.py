"""Make every change of layout that takes shared memory an operation.

In: a function whose values have layouts. Out: the same with a `relayout` wherever an operation wants an operand that other
threads hold, so that only `relayout`, `reshape`, `permute` and `reduce` exchange elements (`tilec.ir.exchange`). What a thread
can do by renaming its registers stays implicit. A store takes its tile in the layout that stores the widest vectors.
"""

from __future__ import annotations

from tilec.ir.blocked_layouts import hidden, natural, vector_length
from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.exchange import is_free
from tilec.ir.layout import Layout
from tilec.ir.ops import Binary, Broadcast, Cast, Compare, For, Gather, If, Scatter, Select, Store, Unary
from tilec.ir.ops_staging import Relayout


def convert(function: Function) -> Function:
    """Insert the conversions, in place."""
    _block(function.body, function.num_warps, ())
    return function


def _block(block: Block, warps: int, yielded: tuple[Layout | None, ...]) -> None:
    """`yielded` are the layouts that the values of the closing `yield` are wanted in."""
    ops: list[Op] = []
    for op in block.ops:
        for region in op.regions:
            _block(region, warps, tuple(value.layout for value in _carried(op)))
        wanted = yielded if op.opcode == "yield" else _wanted(op, warps)
        for place, layout in enumerate(wanted):
            value = op.operands[place]
            if layout is None or value.layout is None or value.layout == layout:
                continue
            if isinstance(op, Store) or not is_free(value, layout):
                op.operands[place] = _relayout(ops, value, layout, op)
        ops.append(op)
    block.ops = ops


def _carried(op: Op) -> list[Value]:
    return op.regions[0].arguments[1:] if isinstance(op, For) else op.results


def _relayout(ops: list[Op], value: Value, layout: Layout, user: Op) -> Value:
    moved = Relayout(operands=[value], loc=user.loc)
    moved.define(value.tile)
    moved.result.layout = layout
    ops.append(moved)
    return moved.result


def _wanted(op: Op, warps: int) -> tuple[Layout | None, ...]:
    """The layout that lowering takes each operand in; None where it does not matter."""
    match op:
        case Unary() | Binary() | Compare() | Select() | Cast():
            return (op.result.layout,) * len(op.operands)
        case Broadcast():
            source, layout = op.operands[0], op.result.layout
            if source.layout is None or layout is None:
                return ()
            return (hidden(layout, {axis for axis, extent in enumerate(source.tile.shape) if extent == 1}),)
        case Gather():
            return (None, *[op.result.layout] * len(op.indices))
        case Scatter():
            return (None, None, *[op.tile.layout] * len(op.indices))
        case Store():
            return (None, _store_layout(op, warps))
        case For():
            return (None, None, None, *(argument.layout for argument in op.regions[0].arguments[1:]))
        case _:
            assert not isinstance(op, If) or len(op.operands) == 1
            return ()


def _store_layout(op: Store, warps: int) -> Layout | None:
    """The tile's own layout, or the natural one where that stores wider vectors (accumulators of `mma`)."""
    tile = op.tile
    if tile.layout is None:
        return None
    wider, most = natural(tile.tile.shape, warps), op.vector // tile.tile.dtype.bytes
    return wider if vector_length(wider, most) > vector_length(tile.layout, most) else tile.layout
