"""Skips out-of-bounds rows of TMA copies if no stored element depends on them.

In: a function whose TMA copies fill an mbarrier ring. Out: the same, with a copy marked `unfilled` if its rows stay independent
up to the store: they are rows or columns of the MMA result, no reduction runs across them, and the masked store drops exactly
the rows that the copy skips (same offset, axis of the same extent). With M = 65 and tiles of 64 the last tile has one row in
bounds; an SM spends more time on 63 rows of zero fill than on 63 rows of the tensor (docs/decisions.md).

A forward analysis that tracks the axes on which each value carries the copy's rows. Skipped rows have undefined contents. Two
independent checks show that these are never observed: `bounds_fill_check`, which works backwards from the stores, and the
emulator, in which an unfilled stage is poison.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import Binary, Broadcast, Butterfly, Cast, For, If, Mma, Permute, Reduce, Reshape, Select, Store, Unary, Yield
from tilec.ir.ops.staging_ops import GroupMma, Relayout, SharedLoad, TensorCopy, WaitMma
from tilec.ir.ops.tmem_chain_ops import TileProduct
from tilec.ir.ops.tmem_ops import TmemLoad, TmemMma

SAME_AXES = (Unary, Binary, Select, Cast, Broadcast, Relayout)
DEPTHS = (1, 0, None)
"""The axis of each operand of an `mma` along which it sums."""


def mark(function: Function) -> Function:
    """Mark copies, in place. Kernels without TMA copies stay unchanged."""
    copies = [op for op in function.body.walk() if isinstance(op, TensorCopy)]
    for buffer in {op.buffer: None for op in copies}:
        into = [op for op in copies if op.buffer is buffer]
        if all(op.sub_tiles == 1 for op in into) and all(_is_unobserved(function, op) for op in into):
            for op in into:
                op.unfilled = True
    return function


def _is_unobserved(function: Function, copy: TensorCopy) -> bool:
    """Whether no stored element depends on the copy's out-of-bounds rows."""
    axes: dict[Value, set[int]] = {}
    while True:
        before = sum(map(len, axes.values()))
        for op in function.body.walk():
            for value, axis in _reached(op, copy.buffer, axes):
                axes.setdefault(value, set()).add(axis)
        if sum(map(len, axes.values())) == before:
            break
    return all(_keeps_rows_independent(op, copy, axes) for op in function.body.walk())


def _reached(op: Op, buffer: Value, axes: dict[Value, set[int]]) -> Iterator[tuple[Value, int]]:
    """Pairs of a result or region argument and an axis on which it carries the rows."""
    if isinstance(op, GroupMma):
        yield from ((op.result, axis) for axis, read in enumerate(op.operands[:4:2]) if read is buffer)
        yield from ((op.result, axis) for axis in axes.get(op.operands[4], ()))
    elif isinstance(op, TmemMma):  # an accumulator is loaded for the tile that it was computed for
        yield from ((op.accumulator, axis) for axis, read in enumerate(op.operands[:4:2]) if read is buffer)
    elif isinstance(op, SharedLoad) and op.buffer is buffer:
        yield op.result, int(op.transposed)
    elif isinstance(op, Mma):
        yield from ((op.result, axis) for value, depth in zip(op.operands, DEPTHS, strict=True)
                    for axis in axes.get(value, ()) if axis != depth)  # fmt: skip
    elif isinstance(op, WaitMma | TmemLoad):
        yield from ((op.result, axis) for axis in axes.get(op.operands[0], ()))
    elif isinstance(op, (*SAME_AXES, Butterfly)):
        yield from ((op.result, axis) for value in op.operands for axis in axes.get(value, ()))
    elif isinstance(op, Permute):
        yield from ((op.result, op.axes.index(axis)) for axis in axes.get(op.operands[0], ()))
    elif isinstance(op, Reshape):
        kept = _kept_axes(op)
        yield from ((op.result, kept[axis]) for axis in axes.get(op.operands[0], ()) if axis in kept)
    elif isinstance(op, Reduce):
        yield from ((op.result, axis - (axis > op.axis)) for axis in axes.get(op.operands[0], ()) if axis != op.axis)
    elif isinstance(op, For):
        for before, inside, after, result in zip(
            op.operands[3:], op.regions[0].arguments[1:], _yielded(op.regions[0]), op.results, strict=True
        ):
            yield from (
                (value, axis) for source in (before, after) for axis in axes.get(source, ()) for value in (inside, result)
            )
    elif isinstance(op, If):
        for region in op.regions:
            for value, result in zip(_yielded(region), op.results, strict=True):
                yield from ((result, axis) for axis in axes.get(value, ()))


def _keeps_rows_independent(op: Op, copy: TensorCopy, axes: dict[Value, set[int]]) -> bool:
    """Whether an operation keeps the rows independent of each other, and stores only those in bounds."""
    if isinstance(op, TileProduct):
        return all(read is not copy.buffer for read, _ in op.touched())  # rows are not followed through tensor memory
    if isinstance(op, GroupMma) and op.mn_major and op.operands[2] is copy.buffer:
        return False  # its rows lie along the depth
    if isinstance(op, GroupMma | TmemMma):
        return True  # its other operands are buffers of other copies, and an accumulator that the analysis tracks
    if isinstance(op, SharedLoad) and op.buffer is copy.buffer:
        return (op.column if op.transposed else op.row) == 0  # its rows are numbered like those of the copy
    if any(read is copy.buffer for read, _ in op.touched()) and op.num_results:
        return False
    offset, extent = copy.offsets[copy.row_axis], copy.source.tensor.dims[copy.row_axis]
    if isinstance(op, For):  # a carried value must hold the same rows in every iteration, so the offset must be loop-invariant
        carried = any(axes.get(value) for value in op.regions[0].arguments)
        return not carried or not any(offset in (*block.arguments, *defined) for block, defined in _defined_values(op))
    tainted = [value for value in op.operands if axes.get(value)]
    if not tainted or isinstance(op, (WaitMma, TmemLoad, *SAME_AXES, Permute, If, Yield)):
        return True
    if isinstance(op, Mma):
        return op.result.tile.rank == 2 and all(
            depth not in axes.get(value, ()) for value, depth in zip(op.operands, DEPTHS, strict=True)
        )
    if isinstance(op, Reshape):
        return axes[op.operands[0]] <= _kept_axes(op).keys()
    if isinstance(op, Reduce | Butterfly):
        return op.axis not in axes[op.operands[0]]
    if not isinstance(op, Store) or not op.mask:
        return False
    return all(op.offsets[axis] is offset and op.target.tensor.dims[axis] == extent for axis in axes[op.tile])


def _defined_values(loop: For) -> Iterator[tuple[Block, list[Value]]]:
    """Blocks of a loop, nested ones included, each with the values that it defines."""
    waiting = list(loop.regions)
    while waiting:
        block = waiting.pop()
        yield block, [value for op in block.ops for value in op.results]
        waiting += [region for op in block.ops for region in op.regions]


def _kept_axes(op: Reshape) -> dict[int, int]:
    """Source axis to result axis, for axes that the reshape keeps: same extent and same element count of the axes before."""
    source, result = op.operands[0].tile.shape, op.result.tile.shape
    result_axes = {(prod(result[:axis]), extent): axis for axis, extent in enumerate(result)}
    found = ((axis, result_axes.get((prod(source[:axis]), extent))) for axis, extent in enumerate(source))
    return {axis: result_axis for axis, result_axis in found if result_axis is not None}


def _yielded(block: Block) -> list[Value]:
    return block.ops[-1].operands
