"""Tensor memory by rows, products with operand A there, and signals between roles."""

from __future__ import annotations

from tilec.atoms import mbarrier, mma_sync, tcgen05, tcgen05_rows
from tilec.atoms.staged_operands import Left, Right
from tilec.ir.ops.signal_ops import OWN, Await, Signal, SignalMma, SignalOp, Signals
from tilec.ir.ops.tmem_chain_ops import TileProduct, TmemFill, TmemOperandMma, TmemScale, TmemStore, TmemTileMma
from tilec.lowering.context import Context
from tilec.lowering.rules import lowers
from tilec.lowering.staging import stage_pointer
from tilec.lowering.tmem_addresses import own_lanes, tile_address
from tilec.mlir.types import SsaValue


@lowers(Signals)
def lower_signals(context: Context, op: Signals) -> None:
    """The first thread initializes the mbarriers."""
    base = context.offset(context.shared_base(), op.offset)
    context.assign(op.result, [base])
    with context.where(context.compare("eq", context.thread(), context.constant(0))):
        mbarrier.make_signals(context, base, op.result.ring.stages * op.parts, op.arrivals)


@lowers(Signal)
def lower_signal(context: Context, op: Signal) -> None:
    """The first thread of each warp arrives on behalf of the warp, whose threads synchronize before."""
    lane = context.bit_and(context.thread(), 31)
    mbarrier.meet_in_warp(context)
    mbarrier.arrive(context, _barrier(context, op), context.compare("eq", lane, context.constant(0)))


@lowers(SignalMma)
def lower_signal_mma(context: Context, op: SignalMma) -> None:
    """The products arrive."""
    tcgen05.commit(context, _barrier(context, op))


@lowers(Await)
def lower_await(context: Context, op: Await) -> None:
    """Waits for the phase of that parity."""
    mbarrier.wait(context, _barrier(context, op), context.scalar(op.parity))


@lowers(TmemTileMma)
def lower_tmem_tile_mma(context: Context, op: TmemTileMma) -> None:
    """One instruction for each 16 of the depth."""
    left, right = op.operands[0].shared, op.operands[2].shared
    a, b = (tcgen05.descriptor(context, stage_pointer(context, buffer, stage)) for buffer, stage in op.reads)
    operands = Left(a, left.atom_bytes), Right(b, right.atom_bytes)
    _start(context, op, operands, right.shape[0], left.shape[1])


@lowers(TmemOperandMma)
def lower_tmem_operand_mma(context: Context, op: TmemOperandMma) -> None:
    """One instruction for each 16 of the depth; b is MN-major."""
    ((buffer, stage),) = op.reads
    right = buffer.shared
    b = tcgen05.descriptor(context, stage_pointer(context, buffer, stage), right.atom_bytes)
    a = tile_address(context, op.left, op.left_stage, op.tile)
    _start(context, op, (a, Right(b, right.atom_bytes, mn_major=True)), right.shape[1], right.shape[0])


def _start(context: Context, op: TileProduct, operands: tuple[Left | SsaValue, Right], columns: int, depth: int) -> None:
    target = tile_address(context, op.accumulator, op.accumulator_stage, op.tile)
    dtype = op.operands[2].shared.dtype
    accumulate = context.scalar(op.accumulate)
    tcgen05_rows.multiply(context, *operands, target, accumulate, columns, depth, dtype, op.tile)


@lowers(TmemStore)
def lower_tmem_store(context: Context, op: TmemStore) -> None:
    """Each thread stores its row, in pairs of neighbors."""
    registers, dtype = context.registers(op.matrix), op.matrix.tile.dtype
    words = [
        mma_sync.pack(context, low, high, dtype) for low, high in zip(registers[::2], registers[1::2], strict=True)
    ]  # fmt: skip
    tcgen05_rows.store(context, own_lanes(context, op.buffer, op.stage), words)


@lowers(TmemFill, TmemScale)
def lower_tmem_rows(context: Context, op: TmemFill | TmemScale) -> None:
    """Each thread has one row."""
    change = tcgen05_rows.fill if isinstance(op, TmemFill) else tcgen05_rows.scale
    change(context, own_lanes(context, op.buffer, op.stage), op.buffer.tmem.shape[1], context.scalar(op.values))


def _barrier(context: Context, op: SignalOp) -> SsaValue:
    """The mbarrier of a part and stage: stages of one part lie one after the other."""
    stages = op.ring.ring.stages
    part = context.mul(context.lshr(context.thread(), 7), stages) if op.part == OWN else context.constant(op.part * stages)
    return mbarrier.full(context, context.pointer(op.ring), context.add(part, context.scalar(op.stage)))
