"""Assigns the layout of every tile and the vector width of every access.

In: a proven function with `num_warps` set, its pipelined loops already staged. Out: the same function with a `Layout` on every
tile value, `vector` and `whole` on every access. Five rules determine layouts:

1. A tile's natural layout depends only on its shape without axes of extent 1: 16 bytes per thread on the last axis, lanes along
   it, warps along the axis before it, the rest in registers. Tiles of equal shape therefore need no conversion.
2. Element-wise results have the layout of their first operand that is neither a constant nor a broadcast.
3. A reduction drops the axis' digits: registers are combined, lanes and warps become replicas.
4. A reshape or permutation keeps every element in its thread if the digits of the layout divide the new axes.
5. Layouts set by the staging pass (`mma`, shared loads) are kept, and propagate to dependent operations (`propagation`).

Operand layouts need not match here: `conversions` inserts the conversions.
"""

from __future__ import annotations

from math import gcd

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.expr import const
from tilec.ir.layouts.blocked_layouts import hidden, natural, reshaped, with_axes, without_axis
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import Broadcast, Cast, Constant, For, If, Iota, Load, Permute, Reduce, Reshape, Store
from tilec.ir.types import TileType
from tilec.passes.analysis.divisibility import aligned_ranges, divisor, expr_divisor, promised_symbols
from tilec.passes.schedule.layouts.propagation import propagate
from tilec.target.families import MemorySpace

VECTOR_BYTES = 16


def assign(function: Function) -> Function:
    """Set layouts and vectors, in place."""
    _set_vectors(function)
    propagate(function)
    _load_as_broadcast(function, function.num_warps)
    _block(function.body, function.num_warps)
    return function


def _set_vectors(function: Function) -> None:
    facts = aligned_ranges(function)
    symbols = promised_symbols(function)
    for op in function.body.walk():
        if not isinstance(op, Load | Store):
            continue
        tensor = op.operands[0].tensor
        size = tensor.dtype.bytes
        strides = tensor.strides
        if strides is None:
            running = 1
            aligned = tensor.align
            for axis in range(tensor.rank - 1, -1, -1):
                extent = op.tile.tile.shape[axis]
                step = gcd(divisor(facts[op.offsets[axis]]), 0 if extent == 1 else (1 if axis < tensor.rank - 1 else 0))
                aligned = gcd(aligned, running * step * size)
                running = running * (expr_divisor(tensor.dims[axis], symbols) or 1)
        else:
            aligned = tensor.align if strides[-1] == const(1) else size
            for axis in range(tensor.rank):
                extent = op.tile.tile.shape[axis]
                step = gcd(divisor(facts[op.offsets[axis]]), 0 if extent == 1 else (1 if axis < tensor.rank - 1 else 0))
                aligned = gcd(aligned, expr_divisor(strides[axis], symbols) * step * size)
        op.vector = max(size, gcd(aligned, VECTOR_BYTES))
        op.whole = expr_divisor(tensor.dims[-1], symbols) * size % op.vector == 0


def _load_as_broadcast(function: Function, warps: int) -> None:
    """Give a load whose only use is a broadcast the broadcast's layout, so that several threads load the same elements: reading
    a cached line again costs less than a conversion through shared memory."""
    uses: dict[Value, int] = {}
    for op in function.body.walk():
        for value in op.operands:
            uses[value] = uses.get(value, 0) + 1
    for op in function.body.walk():
        if not isinstance(op, Broadcast) or not op.operands[0].tile.rank:
            continue
        value, axes = op.operands[0], list(range(op.result.tile.rank))
        repeated = {axis for axis, extent in enumerate(value.tile.shape) if extent == 1}
        while uses[value] == 1 and isinstance(value.owner, Cast | Reshape):
            source = value.owner.operands[0]
            if isinstance(value.owner, Reshape):
                kept = [axes[axis] for axis, extent in enumerate(value.tile.shape) if extent > 1]
                wide = [axis for axis, extent in enumerate(source.tile.shape) if extent > 1]
                if len(kept) != len(wide):
                    break
                axes = [-1] * source.tile.rank
                for axis, outer in zip(wide, kept, strict=True):
                    axes[axis] = outer
            value = source
        if uses[value] == 1 and isinstance(value.owner, Load) and value.layout is None:
            layout = hidden(natural(op.result.tile.shape, warps), repeated)
            numbers = {outer: axis for axis, outer in enumerate(axes) if outer >= 0}
            value.layout = with_axes(layout, numbers, value.tile.rank)


def _block(block: Block, warps: int) -> None:
    for op in block.ops:
        _op(op, warps)


def _op(op: Op, warps: int) -> None:
    if isinstance(op, For):
        _loop(op, warps)
        return
    for region in op.regions:
        _block(region, warps)
    if isinstance(op, If):
        for position, result in enumerate(op.results):
            result.layout = result.layout or op.regions[0].ops[-1].operands[position].layout
        return
    for result in op.results:
        if isinstance(result.type, TileType) and result.type.rank and result.layout is None:
            result.layout = _layout(op, result, warps).in_space(MemorySpace.REGISTERS)


def _loop(op: For, warps: int) -> None:
    body = op.regions[0]
    carried = body.arguments[1:]
    for argument, initial in zip(carried, op.initial, strict=True):
        if argument.tile.rank and argument.layout is None:
            argument.layout = initial.layout or natural(argument.tile.shape, warps)
    _block(body, warps)
    for result, argument in zip(op.results, carried, strict=True):
        result.layout = argument.layout


def _layout(op: Op, result: Value, warps: int) -> Layout:
    shape = result.tile.shape
    match op:
        case Reduce():
            source = op.operands[0].layout
            assert source is not None
            return without_axis(source, op.axis)
        case Permute():
            source = op.operands[0].layout
            assert source is not None
            return with_axes(source, {old: new for new, old in enumerate(op.axes)}, len(shape))
        case Reshape():
            source = op.operands[0]
            same = reshaped(source.layout, source.tile.shape, shape) if source.layout is not None else None
            return same or natural(shape, warps)
        case Constant() | Iota() | Load() | Broadcast():
            return natural(shape, warps)
        case _:
            for operand in op.operands:
                owner = operand.owner
                if operand.layout is not None and operand.tile.shape == shape and not isinstance(owner, Constant | Broadcast):
                    return operand.layout
            return next((v.layout for v in op.operands if v.layout and v.tile.shape == shape), natural(shape, warps))
