"""Matrix products: the registers or stages that each matrix instruction uses."""

from __future__ import annotations

from tilec.atoms import mma_sync
from tilec.atoms.products import atom_of
from tilec.atoms.staged_operands import Left, Right
from tilec.ir.core import Value
from tilec.ir.ops import Constant, Mma
from tilec.ir.ops.staging_ops import GroupMma, GroupProduct, PackPairs, RegisterGroupMma, Relayout, WaitMma
from tilec.ir.types import DType, f16
from tilec.lowering.context import Context
from tilec.lowering.narrow_floats import widened, widened_pair
from tilec.lowering.rules import lowers
from tilec.lowering.staging import stage_pointer
from tilec.mlir.types import SsaValue
from tilec.mlir.types import f16 as mlir_f16


@lowers(Mma)
def lower_mma(context: Context, op: Mma) -> None:
    """One `mma.sync` per instruction tile; operands and accumulator have their fragment layouts. In a batched product (rank 3)
    a thread has `products_per_thread` whole products, consecutive among its registers."""
    dtype, other = (operand.tile.dtype for operand in op.operands[:2])
    a, b, total = (context.registers(value) for value in op.operands)
    steps = op.operands[0].tile.shape[-1] // mma_sync.depth_of(dtype)
    if dtype.is_float and dtype.bits == 8 and not context.multiplies_f8:
        left, right = _as_f16(context, a, dtype, 2), _as_f16(context, b, other, 1)
        dtype, other, steps = f16, f16, 2 * steps
    else:
        left, right = mma_sync.words(context, a, dtype), mma_sync.words(context, b, other)
    products_per_thread = mma_sync.products_of_thread(op.result.layout) if op.result.tile.rank == 3 and op.result.layout else 1
    row_tiles, column_tiles = len(left) // (4 * steps * products_per_thread), len(right) // (2 * steps * products_per_thread)
    result = list(total)
    for product in range(products_per_thread):
        for k in range(steps):
            for row in range(row_tiles):
                # Every other row runs backwards, so that consecutive instructions share an operand.
                columns = range(column_tiles) if row % 2 == 0 else range(column_tiles - 1, -1, -1)
                for column in columns:
                    first_a = 4 * ((product * row_tiles + row) * steps + k)
                    first_b = 2 * ((product * column_tiles + column) * steps + k)
                    first_c = 4 * ((product * row_tiles + row) * column_tiles + column)
                    fragments = left[first_a : first_a + 4], right[first_b : first_b + 2], result[first_c : first_c + 4]
                    result[first_c : first_c + 4] = mma_sync.multiply(context, *fragments, dtype, other)
    context.assign(op.result, result)


def _as_f16(context: Context, registers: list[SsaValue], dtype: DType, rows: int) -> list[SsaValue]:
    """Fragments of 8-bit floats as fragments of f16, of twice as many instructions, which is exact. A word has four neighbors
    along K; of `rows` words, one for each row, the lower halves and then the upper halves are the words of an instruction. It
    takes the terms of both operands in that order."""
    words = [_pair_as_f16(context, low, high, dtype) for low, high in zip(registers[::2], registers[1::2], strict=True)]
    found: list[SsaValue] = []
    for first in range(0, len(words), 2 * rows):
        found += [*words[first : first + 2 * rows : 2], *words[first + 1 : first + 2 * rows : 2]]
    return found


def _pair_as_f16(context: Context, low: SsaValue, high: SsaValue, dtype: DType) -> SsaValue:
    if context.converts_f8:
        return widened_pair(context, low, high, dtype)
    low, high = (context.fptrunc(widened(context, value, dtype), mlir_f16) for value in (low, high))
    return mma_sync.pack(context, low, high, f16)


@lowers(GroupMma)
def lower_group_mma(context: Context, op: GroupMma) -> None:
    """Each issuer computes consecutive instruction tiles along the rows."""
    family, atom = atom_of(op.family)
    left, right = op.operands[0].shared, op.operands[2].shared
    strides = 0, right.atom_bytes if op.mn_major else 0
    a, b = (
        atom.descriptor(context, stage_pointer(context, buffer, stage), stride)
        for (buffer, stage), stride in zip(op.reads, strides, strict=True)
    )
    tiles = _tiles(context, op)
    a = atom.own_rows(context, a, context.thread(), family.shape.rows * tiles)
    _start(context, op, (Left(a, left.atom_bytes), Right(b, right.atom_bytes, op.mn_major)), tiles, left.shape[1])


@lowers(RegisterGroupMma)
def lower_register_group_mma(context: Context, op: RegisterGroupMma) -> None:
    """As `lower_group_mma`, with operand A in registers."""
    _, atom = atom_of(op.family)
    a, right = op.operands[0], op.operands[1].shared
    ((buffer, stage),) = op.reads
    b = atom.descriptor(context, stage_pointer(context, buffer, stage), right.atom_bytes if op.mn_major else 0)
    operands = Left(a_registers=tuple(context.registers(a))), Right(b, right.atom_bytes, op.mn_major)
    _start(context, op, operands, _tiles(context, op), op.right_shape[1])


@lowers(PackPairs)
def lower_pack_pairs(context: Context, op: PackPairs) -> None:
    """Packs pairs of registers: consecutive columns are in consecutive registers."""
    _, atom = atom_of(op.family)
    registers = context.registers(op.operands[0])
    pairs = zip(registers[::2], registers[1::2], strict=True)
    context.assign(op.result, [atom.pack(context, low, high, op.dtype) for low, high in pairs])


def _tiles(context: Context, op: GroupProduct) -> int:
    """Instructions of an issuer along the rows."""
    family, _ = atom_of(op.family)
    return op.result.tile.shape[0] // family.shape.rows // family.issuers(context.threads // 32)


def _start(context: Context, op: GroupProduct, operands: tuple[Left, Right], tiles: int, depth: int) -> None:
    _, atom = atom_of(op.family)
    accumulator = op.operands[-1]
    dtypes = op.reads[0][0].shared.dtype, op.reads[-1][0].shared.dtype
    initial = context.registers(accumulator)
    accumulators = atom.start(context, *operands, initial, tiles, op.result.tile.shape[1], depth, dtypes, _is_zero(accumulator))
    context.assign(op.result, accumulators)


def _is_zero(value: Value) -> bool:
    while isinstance(value.owner, Relayout):
        value = value.owner.operands[0]
    return isinstance(value.owner, Constant) and value.owner.value == 0


@lowers(WaitMma)
def lower_wait_mma(context: Context, op: WaitMma) -> None:
    """Passes the accumulators through the wait, so that their uses come after it."""
    _, atom = atom_of(op.family)
    before = [value for operand in op.operands[1:] for value in context.registers(operand)]
    finished = atom.wait(context, context.registers(op.operands[0]), op.pending, before)
    product = op.operands[0].owner
    begins = isinstance(product, GroupProduct) and _is_zero(product.operands[-1])
    if begins and op.result.tile.dtype.is_float and context.is_computed_on_later(op.result):
        finished = [atom.renamed(context, value) for value in finished]
    context.assign(op.result, finished)
