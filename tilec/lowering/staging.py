"""Buffers in shared memory: copies into a stage, and operand fragments loaded from one."""

from __future__ import annotations

from dataclasses import replace

from tilec.atoms import cp_async, ldmatrix, mbarrier, mma_sync, shared_elements, tma
from tilec.atoms.cp_async import Box, Edges
from tilec.atoms.shared_elements import SharedMatrix
from tilec.ir.core import Value
from tilec.ir.ops.staging_ops import AsyncCopy, SharedAlloc, SharedLoad, TensorCopy
from tilec.ir.types import ScratchType
from tilec.lowering.context import Context, storage
from tilec.lowering.positions import start
from tilec.lowering.rings import full, is_of_pair, leaders_full
from tilec.lowering.rules import lowers
from tilec.mlir.types import SsaValue, i64


@lowers(SharedAlloc)
def lower_shared_alloc(context: Context, op: SharedAlloc) -> None:
    """A buffer is a fixed offset into dynamic shared memory. The pointer of scratch is created at its first use."""
    scratch = isinstance(op.result.type, ScratchType)
    context.assign(op.result, [] if scratch else [context.offset(context.shared_base(), op.offset)])


def stage_pointer(context: Context, buffer: Value, stage: Value) -> SsaValue:
    """Start of a stage of a ring."""
    (index,) = context.registers(stage)
    offset = context.mul(index, buffer.shared.stage_bytes)
    return context.offset(context.pointer(buffer), offset)


@lowers(AsyncCopy)
def lower_async_copy(context: Context, op: AsyncCopy) -> None:
    """Every thread copies its share of the box; with `pad`, each copy's byte count is limited at the tensor's edges."""
    tensor, size = op.source, op.source.tensor.dtype.bytes
    rank = tensor.tensor.rank
    positions = [start(context, value, context.registers(value)[0]) for value in op.offsets]
    element = context.constant(0, i64)
    for axis, coordinate in enumerate(positions):
        element = context.add(element, context.mul(coordinate.wide(context), context.stride(tensor, axis)))
    pointer = context.offset(context.pointer(tensor), context.mul(element, size))
    row_axis, sub_axis = rank + op.row_axis, rank + op.sub_axis
    row_stride = context.mul(context.stride(tensor, row_axis), size)
    stage, matrix = stage_pointer(context, op.buffer, op.stage), op.buffer.shared
    sub_tile = replace(matrix, shape=(matrix.shape[0] // op.sub_tiles, matrix.shape[1]))
    for sub_tile_index in range(op.sub_tiles):
        if sub_tile_index:
            pointer = context.offset(pointer, context.mul(context.stride(tensor, sub_axis), size))
            stage = context.offset(stage, sub_tile.stage_bytes)
            positions[sub_axis] = positions[sub_axis].moved(context, context.constant(1))
        edges = None
        if op.pad:
            other_axes = [axis for axis in range(rank - 1) if axis != row_axis]
            in_bounds = _all(context, [positions[axis].below(context, context.extent(tensor, axis)) for axis in other_axes])
            extents = context.extent(tensor, row_axis), context.extent(tensor, rank - 1)
            edges = Edges(positions[row_axis], positions[-1], *extents, in_bounds, op.whole)
        box = Box(pointer, row_stride, edges)
        cp_async.async_copy(context, box, sub_tile, stage, context.thread(), context.threads, op.vector)


@lowers(TensorCopy)
def lower_tensor_copy(context: Context, op: TensorCopy) -> None:
    """One thread copies the whole box, in as many copies as its rows need. If `unfilled`, it uses the smallest box with
    all rows inside the tensor, and completes the bytes of the omitted rows on the mbarrier."""
    allocation = op.buffer.owner
    assert isinstance(allocation, SharedAlloc)
    buffer = op.buffer.shared
    rows = buffer.shape[0]
    stage = stage_pointer(context, op.buffer, op.stage)
    coordinates = [context.scalar(value) for value in op.offsets]
    ring = allocation.operands[0]
    pair = is_of_pair(ring)
    barrier = leaders_full(context, ring, op.stage) if pair else full(context, ring, op.stage)
    box = tma.box_of(op.source.tensor, buffer, op.row_axis, op.sub_tiles, op.gap)
    map_ = context.tensor_map(op.source, box)
    smaller_boxes = tma.smaller_box_rows(rows) if op.unfilled else ()
    if smaller_boxes:
        # An extent is at most 2^31 - 2^16: if this subtraction wraps, the box starts at least 2^16 rows before the tensor, and
        # none of its rows is inside.
        rows_in_bounds = context.sub(context.extent(op.source, op.row_axis), coordinates[op.row_axis])
        omitted_bytes = context.constant(0)
        for count in smaller_boxes:
            fits = context.compare("sle", rows_in_bounds, context.constant(count))
            smaller_box = tma.box_of(op.source.tensor, replace(buffer, shape=(count, buffer.shape[1])), op.row_axis)
            map_ = context.select(fits, context.tensor_map(op.source, smaller_box), map_)
            bytes_ = tma.copied_bytes(buffer) // rows * (rows - count)
            omitted_bytes = context.select(fits, context.constant(bytes_), omitted_bytes)
        mbarrier.complete(
            context, barrier, omitted_bytes, context.compare("sle", rows_in_bounds, context.constant(smaller_boxes[0]))
        )
    names = tma.Names.PAIR if pair else tma.Names.BLOCK if context.own_block else tma.Names.CLUSTER
    tma.copy_stage(context, map_, box, op.row_axis, op.sub_tiles, op.gap, buffer, stage, coordinates, barrier, names)


def _all(context: Context, conditions: list[SsaValue]) -> SsaValue | None:
    out: SsaValue | None = None
    for condition in conditions:
        out = context.bit_and(out, condition) if out else condition
    return out


@lowers(SharedLoad)
def lower_shared_load(context: Context, op: SharedLoad) -> None:
    """Loads an operand's fragments by `ldmatrix`, four matrices at a time, or element by element."""
    layout = op.result.layout
    assert layout is not None
    dtype = op.result.tile.dtype
    thread = context.thread()
    lane, warp = context.bit_and(thread, 31), context.lshr(thread, 5)
    stage = stage_pointer(context, op.buffer, op.stage)
    origin = (op.row, op.column)
    if not ldmatrix.loads(layout, dtype, op.transposed):
        stored = SharedMatrix(op.buffer.shared, stage, origin, op.transposed)
        context.assign(op.result, shared_elements.load(context, stored, layout, lane, warp, storage(dtype)))
        return
    packed = ldmatrix.load_matrices(context, op.buffer.shared, stage, layout, lane, warp, origin, op.transposed)
    context.assign(op.result, [value for word in packed for value in mma_sync.elements(context, word, dtype)])
