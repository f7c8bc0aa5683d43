"""Matrix products: which registers or stages each instruction of a family works on."""

from __future__ import annotations

from tilec.atoms import mma_sync, wgmma
from tilec.ir.ops import Mma
from tilec.ir.ops_staging import GroupMma, WaitMma
from tilec.lowering.context import Context
from tilec.lowering.rules import lowers
from tilec.lowering.staging import stage_pointer


@lowers(Mma)
def lower_mma(context: Context, op: Mma) -> None:
    """One `mma.sync.m16n8k16` per instruction tile; operands and accumulator are in their fragment layouts."""
    dtype = op.operands[0].tile.dtype
    a, b, total = (context.registers(value) for value in op.operands)
    left = [mma_sync.pack(context, a[i], a[i + 1], dtype) for i in range(0, len(a), 2)]
    right = [mma_sync.pack(context, b[i], b[i + 1], dtype) for i in range(0, len(b), 2)]
    steps = op.operands[0].tile.shape[1] // mma_sync.K
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
                result[first_c : first_c + 4] = mma_sync.multiply(context, *fragments, dtype)
    context.assign(op.result, result)


@lowers(GroupMma)
def lower_group_mma(context: Context, op: GroupMma) -> None:
    """One `wgmma` per tile of 64 rows and 16 of depth; a group of warps takes neighbouring tiles."""
    left, right = op.operands[0].shared, op.operands[2].shared
    tiles = left.shape[0] // wgmma.GROUP_M // (context.threads // 128)
    a, b = (wgmma.descriptor(context, stage_pointer(context, op.operands[place], op.operands[place + 1])) for place in (0, 2))
    group = context.lshr(context.thread(), 7)
    a = wgmma.rows_below(context, a, context.mul(group, wgmma.GROUP_M * tiles))
    total = context.registers(op.operands[4])
    context.assign(op.result, wgmma.start(context, a, b, total, tiles, right.shape[0], left.dtype))


@lowers(WaitMma)
def lower_wait_mma(context: Context, op: WaitMma) -> None:
    """Pass the accumulators through, so that nothing that uses them comes before."""
    context.assign(op.result, wgmma.wait(context, context.registers(op.operands[0]), op.pending))
