"""What orders threads: rings of stages, barriers, fences. A ring of groups is the order of instructions, and nothing is kept of
it; one of mbarriers lies in shared memory."""

from __future__ import annotations

from tilec.atoms import cp_async, mbarrier
from tilec.ir.core import Op, Value
from tilec.ir.ops_sync import (
    Acquire,
    Barrier,
    Commit,
    Drain,
    PassTurn,
    ProxyFence,
    Release,
    Ring,
    SharedFree,
    TakeTurn,
    TurnOp,
    Wait,
)
from tilec.lowering.context import Context
from tilec.lowering.rules import lowers
from tilec.mlir.types import SsaValue


@lowers(Ring)
def lower_ring(context: Context, op: Ring) -> None:
    """The first thread makes the mbarriers."""
    if op.sync == "groups":
        return
    base = context.offset(context.shared_base(), op.offset)
    context.assign(op.result, [base])
    with context.where(context.compare("eq", context.thread(), context.constant(0))):
        mbarrier.make(context, base, op.result.ring.stages, op.readers, op.takers if op.takers > 1 else 0)


@lowers(SharedFree)
def lower_nothing(context: Context, op: Op) -> None:
    """Bytes are free by their plan."""


@lowers(Barrier)
def lower_barrier(context: Context, op: Barrier) -> None:
    """Wait for all threads of the block, or for those of the role, at a barrier of its own."""
    if op.scope == "role" and context.role_number:
        context.part_barrier(context.role_number, context.threads)
    else:
        op.require(op.scope == "block", f"nothing lowers the scope {op.scope} here")
        context.barrier()


@lowers(Acquire)
def lower_acquire(context: Context, op: Acquire) -> None:
    """Of mbarriers: wait until the readers of the stage's round before have arrived, and announce the bytes to come. Stages of
    a ring of groups are free by the order of barriers."""
    if by_groups(op.ring):
        return
    stage, stages = context.scalar(op.stage), op.ring.ring.stages
    before = context.bit_xor(context.scalar(op.parity), 1)
    mbarrier.wait(context, mbarrier.empty(context, context.pointer(op.ring), stage, stages), before)
    mbarrier.expect(context, full(context, op.ring, op.stage), op.expected)


@lowers(Commit)
def lower_commit(context: Context, op: Commit) -> None:
    """Of groups: the thread's copies since the last group are one. At an mbarrier the bytes themselves tell."""
    if by_groups(op.ring):
        context.commit_group()


@lowers(Wait)
def lower_wait(context: Context, op: Wait) -> None:
    """For all groups of the thread but the newest ones, or for the bytes of the stage."""
    if by_groups(op.ring):
        context.wait_group(op.pending)
    else:
        mbarrier.wait(context, full(context, op.ring, op.stage), context.scalar(op.parity))


@lowers(Release)
def lower_release(context: Context, op: Release) -> None:
    """Of mbarriers: the first thread of every warp arrives, for all of it."""
    if by_groups(op.ring):
        return
    barrier = mbarrier.empty(context, context.pointer(op.ring), context.scalar(op.stage), op.ring.ring.stages)
    lane = context.bit_and(context.thread(), 31)
    mbarrier.arrive(context, barrier, context.compare("eq", lane, context.constant(0)))


@lowers(TakeTurn)
def lower_take_turn(context: Context, op: TakeTurn) -> None:
    """Who is first need not wait for its first turn: it waits for the round before."""
    parity = context.scalar(op.parity)
    mbarrier.wait(context, turn(context, op, op.place), parity if op.place else context.bit_xor(parity, 1))


@lowers(PassTurn)
def lower_pass_turn(context: Context, op: PassTurn) -> None:
    """The first thread of every warp arrives, for all of it."""
    made = op.ring.owner
    assert isinstance(made, Ring)
    lane = context.bit_and(context.thread(), 31)
    following = turn(context, op, (op.place + 1) % made.takers)
    mbarrier.arrive(context, following, context.compare("eq", lane, context.constant(0)))


@lowers(Drain)
def lower_drain(context: Context, op: Drain) -> None:
    """For all groups of the thread."""
    op.require(by_groups(op.ring), "only groups are drained")
    context.wait_group(0)


@lowers(ProxyFence)
def lower_proxy_fence(context: Context, _: ProxyFence) -> None:
    """What is written so far is there for the async proxy."""
    cp_async.proxy_fence(context)


def by_groups(ring: Value) -> bool:
    """Whether groups of copies signal a ring, not mbarriers."""
    made = ring.owner
    assert isinstance(made, Ring)
    return made.sync == "groups"


def turn(context: Context, op: TurnOp, place: int) -> SsaValue:
    """The mbarrier that gives a role its turn."""
    return mbarrier.turn(context, context.pointer(op.ring), place, op.ring.ring.stages)


def full(context: Context, ring: Value, stage: Value) -> SsaValue:
    """The mbarrier that the bytes of a stage complete."""
    return mbarrier.full(context, context.pointer(ring), context.scalar(stage))
