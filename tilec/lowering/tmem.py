"""Tensor memory: allocation, products into it, and loads from it."""

from __future__ import annotations

from collections.abc import Callable

from tilec.atoms import mbarrier, tcgen05, tcgen05_rows
from tilec.atoms.staged_operands import Left, Right
from tilec.ir.core import Value
from tilec.ir.ops.pair_ops import PairMma
from tilec.ir.ops.tmem_ops import CommitMma, ReleaseMma, TmemAlloc, TmemFree, TmemLoad, TmemMma, TmemReserve
from tilec.ir.types import TmemSpaceType
from tilec.lowering.context import Context
from tilec.lowering.rings import full, is_of_pair
from tilec.lowering.rules import lowers
from tilec.lowering.staging import stage_pointer
from tilec.lowering.tmem_addresses import own_lanes, stage_address
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue


@lowers(TmemReserve)
def lower_tmem_reserve(context: Context, op: TmemReserve) -> None:
    """The first warp allocates; the other threads read the address after the barrier that follows."""
    slot = context.offset(context.shared_base(), op.offset)
    context.assign(op.result, [slot])
    with context.where(_is_first_warp(context)):
        tcgen05.reserve(context, slot, _columns(op.result), context.function.cluster)


@lowers(TmemAlloc)
def lower_tmem_alloc(context: Context, op: TmemAlloc) -> None:
    """The address of the buffer, which every thread reads."""
    space = tcgen05.address(context, context.pointer(op.operands[0]))
    context.assign(op.result, [context.add(space, op.column) if op.column else space])


@lowers(TmemMma)
def lower_tmem_mma(context: Context, op: TmemMma) -> None:
    """The instructions of a stage, one for each 128 rows and 32 bytes of the depth."""
    left, right = op.operands[0].shared, op.operands[2].shared
    a, b = (tcgen05.descriptor(context, stage_pointer(context, buffer, stage)) for buffer, stage in op.reads)
    target = stage_address(context, op.accumulator, op.accumulator_stage)
    shape = *op.accumulator.tmem.shape, left.shape[1]
    operands = Left(a, left.atom_bytes), Right(b, right.atom_bytes)
    accumulate, blocks = context.scalar(op.accumulate), context.function.cluster
    tcgen05.multiply(context, *operands, target, accumulate, shape, left.dtype, blocks, right.dtype)


@lowers(PairMma)
def lower_pair_mma(context: Context, op: PairMma) -> None:
    """The same instructions; each has 128 rows in each block."""
    lower_tmem_mma(context, op)


@lowers(CommitMma)
def lower_commit_mma(context: Context, op: CommitMma) -> None:
    """The products arrive at the stage's full barrier."""
    _commit(op.ring)(context, full(context, op.ring, op.stage))


@lowers(ReleaseMma)
def lower_release_mma(context: Context, op: ReleaseMma) -> None:
    """The products arrive at the stage's empty barrier."""
    stage = context.scalar(op.stage)
    _commit(op.ring)(context, mbarrier.empty(context, context.pointer(op.ring), stage, op.ring.ring.stages))


@lowers(TmemLoad)
def lower_tmem_load(context: Context, op: TmemLoad) -> None:
    """Each warp loads the rows of its lanes."""
    assert op.result.layout is not None
    if len(op.result.layout.registers) == 1:  # a row for each thread
        source = own_lanes(context, op.buffer, op.stage)
        context.assign(op.result, tcgen05_rows.load(context, source, op.result.layout.num_registers))
        return
    source, warp = stage_address(context, op.buffer, op.stage), context.lshr(context.thread(), 5)
    context.assign(op.result, tcgen05.load(context, op.buffer.tmem, source, op.result.layout, warp))


@lowers(TmemFree)
def lower_tmem_free(context: Context, op: TmemFree) -> None:
    """The warp that allocated the columns frees them."""
    space = op.operands[0]
    with context.where(_is_first_warp(context)):
        tcgen05.free(context, tcgen05.address(context, context.pointer(space)), _columns(space), context.function.cluster)


def _commit(ring: Value) -> Callable[[Builder, SsaValue], None]:
    return tcgen05.commit_in_pair if is_of_pair(ring) else tcgen05.commit


def _is_first_warp(context: Context) -> SsaValue:
    return context.compare("ult", context.thread(), context.constant(32))


def _columns(space: Value) -> int:
    assert isinstance(space.type, TmemSpaceType)
    return space.type.columns
