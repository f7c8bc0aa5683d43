"""How the tensor-core operations of the tile IR become instructions: which tile, stage and registers each one works on.

`TileContext` is the little of the lowering's state that these rules need, so they stay independent of the rest.
"""

from __future__ import annotations

from typing import Protocol

from tilec.ir import mma_layouts
from tilec.ir.core import Value
from tilec.ir.ops import Mma
from tilec.ir.ops_staging import AsyncCopy, GroupMma, SharedAlloc, SharedLoad, WaitCopies, WaitMma
from tilec.lowering import tensor_core, warpgroup
from tilec.lowering.positions import position
from tilec.lowering.tensor_core import Box, Writer, arith, number, offset_pointer


class TileContext(Writer, Protocol):
    """The state of lowering one kernel. Tiles are lists of per-thread SSA names in register order of their layout."""

    threads: int

    def registers(self, value: Value) -> list[str]:
        """What this thread holds of a tile; one name for a scalar."""
        ...

    def assign(self, value: Value, registers: list[str]) -> None:
        """Set what this thread holds of a tile."""
        ...

    def pointer(self, tensor: Value) -> str:
        """Base of a tensor (`!llvm.ptr<1>`) or of a shared buffer (`!llvm.ptr<3>`)."""
        ...

    def extent(self, tensor: Value, axis: int) -> str:
        """Extent of an axis as i32."""
        ...

    def stride(self, tensor: Value, axis: int) -> str:
        """Stride of an axis in elements as i64."""
        ...

    def thread(self) -> str:
        """Index of this thread in its block, i32."""
        ...

    def shared_base(self) -> str:
        """Start of the dynamic shared memory."""
        ...


def lower_shared_alloc(context: TileContext, op: SharedAlloc) -> None:
    """A buffer is a fixed offset into the dynamic shared memory."""
    context.assign(op.result, [offset_pointer(context, context.shared_base(), op.offset, tensor_core.SHARED)])


def lower_wait_copies(context: TileContext, op: WaitCopies) -> None:
    """Wait for this thread's groups, then for the block."""
    tensor_core.wait_copies(context, op.pending, op.matrices)


def _stage_pointer(context: TileContext, buffer: Value, stage: Value) -> str:
    (index,) = context.registers(stage)
    offset = arith(context, "mul", index, buffer.shared.stage_bytes)
    return offset_pointer(context, context.pointer(buffer), offset, tensor_core.SHARED)


def lower_async_copy(context: TileContext, op: AsyncCopy) -> None:
    """Every thread copies its share of the box; with `pad` each copy's byte count ends at the tensor's edges."""
    tensor, size = op.source, op.source.tensor.dtype.bytes
    rank = tensor.tensor.rank
    positions = [position(context, value, context.registers(value)[0]) for value in op.offsets]
    element = number(context, 0, "i64")
    for axis, place in enumerate(positions):
        wide = place.wide(context)
        scaled = wide if axis == rank - 1 else arith(context, "mul", wide, context.stride(tensor, axis), "i64")
        element = arith(context, "add", element, scaled, "i64")
    start = arith(context, "mul", element, size, "i64")
    pointer = offset_pointer(context, context.pointer(tensor), start, tensor_core.GLOBAL, "i64")
    row_axis = rank + op.row_axis
    row_stride = arith(context, "mul", context.stride(tensor, row_axis), size, "i64")
    box = Box(pointer, row_stride)
    if op.pad:
        others = [axis for axis in range(rank - 1) if axis != row_axis]
        inside = _all(context, [positions[axis].below(context, context.extent(tensor, axis)) for axis in others])
        extents = context.extent(tensor, row_axis), context.extent(tensor, rank - 1)
        box = Box(pointer, row_stride, True, op.whole, positions[row_axis], positions[-1], *extents, inside)
    stage = _stage_pointer(context, op.buffer, op.stage)
    tensor_core.async_copy(context, box, op.buffer.shared, stage, context.thread(), context.threads, op.vector)


def _all(context: TileContext, conditions: list[str]) -> str:
    out = ""
    for condition in conditions:
        out = context.value(f"llvm.and {out}, {condition} : i1") if out else condition
    return out


def lower_shared_load(context: TileContext, op: SharedLoad) -> None:
    """`ldmatrix` of the operand, four matrices at a time."""
    layout = op.result.layout
    assert layout is not None
    dtype = op.result.tile.dtype
    thread = context.thread()
    lane, warp = arith(context, "and", thread, 31), arith(context, "lshr", thread, 5)
    stage = _stage_pointer(context, op.buffer, op.stage)
    origin = (op.row, op.column)
    packed = tensor_core.load_matrices(context, op.buffer.shared, stage, layout, lane, warp, origin, op.transposed)
    context.assign(op.result, [value for pair in packed for value in tensor_core.unpack(context, pair, dtype)])


def lower_mma(context: TileContext, op: Mma) -> None:
    """One `mma.sync.m16n8k16` per instruction tile; operands and accumulator are in their fragment layouts."""
    dtype = op.operands[0].tile.dtype
    a, b, total = (context.registers(value) for value in op.operands)
    left = [tensor_core.pack(context, a[i], a[i + 1], dtype) for i in range(0, len(a), 2)]
    right = [tensor_core.pack(context, b[i], b[i + 1], dtype) for i in range(0, len(b), 2)]
    steps = op.operands[0].tile.shape[1] // mma_layouts.K
    row_tiles, column_tiles = len(left) // (4 * steps), len(right) // (2 * steps)
    result = list(total)
    for k in range(steps):
        for row in range(row_tiles):
            # Every other row runs backwards, so that neighbouring instructions share an operand.
            columns = range(column_tiles) if row % 2 == 0 else range(column_tiles - 1, -1, -1)
            for column in columns:
                first_a, first_b = 4 * (row * steps + k), 2 * (column * steps + k)
                first_c = 4 * (row * column_tiles + column)
                fragments = left[first_a : first_a + 4], right[first_b : first_b + 2], result[first_c : first_c + 4]
                result[first_c : first_c + 4] = tensor_core.multiply(context, *fragments, dtype)
    context.assign(op.result, result)


def lower_group_mma(context: TileContext, op: GroupMma) -> None:
    """One `wgmma` per tile of 64 rows and 16 of depth; a group of warps takes neighbouring tiles."""
    left, right = op.operands[0].shared, op.operands[2].shared
    tiles = left.shape[0] // mma_layouts.GROUP_M // (context.threads // 128)
    a, b = (
        warpgroup.descriptor(context, _stage_pointer(context, op.operands[place], op.operands[place + 1])) for place in (0, 2)
    )
    group = arith(context, "lshr", context.thread(), 7)
    a = warpgroup.rows_below(context, a, arith(context, "mul", group, mma_layouts.GROUP_M * tiles))
    total = context.registers(op.operands[4])
    context.assign(op.result, warpgroup.start(context, a, b, total, tiles, right.shape[0], left.dtype))


def lower_wait_mma(context: TileContext, op: WaitMma) -> None:
    """Pass the accumulators through, so that nothing that uses them comes before."""
    context.assign(op.result, warpgroup.wait(context, context.registers(op.operands[0]), op.pending))
