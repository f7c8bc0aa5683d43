"""Synchronization: rings of stages, barriers, fences. A ring synchronized by `cp.async` groups relies on instruction order and
needs no storage; a ring of mbarriers lies in shared memory."""

from __future__ import annotations

from tilec.atoms import cp_async, mbarrier
from tilec.ir.core import Op, Value
from tilec.ir.ops.pair_ops import PairRing
from tilec.ir.ops.sync_ops import (
    Acquire,
    Barrier,
    Commit,
    Drain,
    OrderArrive,
    OrderOp,
    OrderWait,
    ProxyFence,
    Release,
    Ring,
    SharedFree,
    Wait,
    WarpBarrier,
)
from tilec.lowering.context import Context
from tilec.lowering.rules import lowers
from tilec.mlir.types import SsaValue


@lowers(Ring)
def lower_ring(context: Context, op: Ring) -> None:
    """The first thread initializes the mbarriers."""
    if op.sync == "groups":
        return
    base = context.offset(context.shared_base(), op.offset)
    context.assign(op.result, [base])
    with context.where(context.compare("eq", context.thread(), context.constant(0))):
        mbarrier.make(context, base, op.result.ring.stages, op.readers, op.consumer_roles if op.consumer_roles > 1 else 0)


@lowers(PairRing)
def lower_pair_ring(context: Context, op: PairRing) -> None:
    """The first thread of each block initializes its mbarriers; the other block may use them after a barrier of the pair."""
    base = context.offset(context.shared_base(), op.offset)
    context.assign(op.result, [base])
    with context.where(context.compare("eq", context.thread(), context.constant(0))):
        mbarrier.make(context, base, op.result.ring.stages, op.readers, producers=op.producers)
        mbarrier.publish(context)


@lowers(SharedFree)
def lower_nothing(context: Context, op: Op) -> None:
    """No code: the shared memory plan has already reused the bytes."""


@lowers(Barrier)
def lower_barrier(context: Context, op: Barrier) -> None:
    """A barrier for all threads of the block or of both blocks of a pair, or a named barrier for those of the role."""
    if op.scope == "cluster":
        mbarrier.meet_in_cluster(context)
    elif op.scope == "role" and context.role_number:
        context.named_barrier(context.role_number, context.threads)
    else:
        op.require(op.scope == "block", f"nothing lowers the scope {op.scope} here")
        context.barrier()


@lowers(Acquire)
def lower_acquire(context: Context, op: Acquire) -> None:
    """With mbarriers: waits until the consumers have released the previous phase of the stage, and sets the bytes, if copies
    fill it. In a ring of groups, barriers already guarantee that the stage is free."""
    if by_groups(op.ring):
        return
    stage, stages = context.scalar(op.stage), op.ring.ring.stages
    previous_parity = context.bit_xor(context.scalar(op.parity), 1)
    # Threads of both blocks release accumulators; a stage of operands is released by the leader's products, for each block.
    wait = mbarrier.wait_in_cluster if is_of_pair(op.ring) and not op.expected else mbarrier.wait
    wait(context, mbarrier.empty(context, context.pointer(op.ring), stage, stages), previous_parity)
    if op.expected and is_of_pair(op.ring):
        mbarrier.expect_at_leader(context, leaders_full(context, op.ring, op.stage), op.expected)
    elif op.expected:
        mbarrier.expect(context, full(context, op.ring, op.stage), op.expected)


@lowers(Commit)
def lower_commit(context: Context, op: Commit) -> None:
    """With groups: commits this thread's copies since the last commit as one group. With mbarriers: nothing, since the bytes
    themselves complete the phase."""
    if by_groups(op.ring):
        context.commit_group()


@lowers(Wait)
def lower_wait(context: Context, op: Wait) -> None:
    """Waits for all but the newest `pending` groups of this thread, or for the bytes of the stage."""
    if by_groups(op.ring):
        context.wait_group(op.pending)
    else:
        mbarrier.wait(context, full(context, op.ring, op.stage), context.scalar(op.parity))


@lowers(Release)
def lower_release(context: Context, op: Release) -> None:
    """With mbarriers: the first thread of each warp arrives on behalf of the warp."""
    if by_groups(op.ring):
        return
    barrier = mbarrier.empty(context, context.pointer(op.ring), context.scalar(op.stage), op.ring.ring.stages)
    lane = context.bit_and(context.thread(), 31)
    first = context.compare("eq", lane, context.constant(0))
    if is_of_pair(op.ring):
        mbarrier.arrive_at_leader(context, mbarrier.of_leader(context, barrier), first)
    else:
        mbarrier.arrive(context, barrier, first)


@lowers(OrderWait)
def lower_order_wait(context: Context, op: OrderWait) -> None:
    """Ping-pong: waits until the previous consumer hands over. Consumer 0 goes first: it waits for the preceding
    parity, which a fresh mbarrier satisfies at once."""
    parity = context.scalar(op.parity)
    mbarrier.wait(context, order_barrier(context, op, op.consumer), parity if op.consumer else context.bit_xor(parity, 1))


@lowers(OrderArrive)
def lower_order_arrive(context: Context, op: OrderArrive) -> None:
    """Ping-pong: the first thread of each warp arrives at the next consumer's mbarrier, on behalf of the warp."""
    ring = op.ring.owner
    assert isinstance(ring, Ring)
    lane = context.bit_and(context.thread(), 31)
    next_barrier = order_barrier(context, op, (op.consumer + 1) % ring.consumer_roles)
    mbarrier.arrive(context, next_barrier, context.compare("eq", lane, context.constant(0)))


@lowers(Drain)
def lower_drain(context: Context, op: Drain) -> None:
    """Waits for all groups of this thread."""
    op.require(by_groups(op.ring), "only groups are drained")
    context.wait_group(0)


@lowers(WarpBarrier)
def lower_warp_barrier(context: Context, _: WarpBarrier) -> None:
    """Synchronizes the threads of each warp."""
    mbarrier.meet_in_warp(context)


@lowers(ProxyFence)
def lower_proxy_fence(context: Context, _: ProxyFence) -> None:
    """Makes earlier writes visible to the async proxy."""
    cp_async.proxy_fence(context)


def by_groups(ring: Value) -> bool:
    """Whether `cp.async` groups, not mbarriers, signal the stages of a ring."""
    ring_op = ring.owner
    assert isinstance(ring_op, Ring)
    return ring_op.sync == "groups"


def is_of_pair(ring: Value) -> bool:
    """Whether the stages of a ring lie in both blocks of a pair."""
    return isinstance(ring.owner, PairRing)


def order_barrier(context: Context, op: OrderOp, consumer: int) -> SsaValue:
    """The mbarrier on which a consumer waits before its phase."""
    return mbarrier.order_barrier(context, context.pointer(op.ring), consumer, op.ring.ring.stages)


def full(context: Context, ring: Value, stage: Value) -> SsaValue:
    """The mbarrier whose phase the bytes of a stage complete."""
    return mbarrier.full(context, context.pointer(ring), context.scalar(stage))


def leaders_full(context: Context, ring: Value, stage: Value) -> SsaValue:
    """The address (i64) of the full barrier of a stage in the leader of the pair."""
    return mbarrier.of_leader(context, full(context, ring, stage))
