"""Operations that order the threads of a block: rings of stages, barriers, fences, roles. Made by passes, never by an author.

A *ring* is a first-in, first-out queue of stages between a producer and its consumers:

    acquire     wait until the next stage is free                                    producer
    commit      the acquired stage is full once its copies complete                  producer
    wait        wait until the next stage is full                                    consumer
    release     the consumer no longer reads the stages                              consumer
    order_wait   wait until the consumer before has waited for its whole tile         one of several consumers
    order_arrive this consumer has waited for its whole tile; the next may wait       one of several consumers

`Ring` describes the two mechanisms, `OrderOp` the order of several consumers. `tilec.passes.schedule.checks.verify` checks
these rules on every function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from tilec.ir.core import Effect, Op, Value
from tilec.ir.types import RingType, ScratchType, SharedType, TileType, i32

SYNCS: Final = ("groups", "mbarriers")
SCOPES: Final = ("block", "role", "cluster")


@dataclass(eq=False, kw_only=True)
class Ring(Op, opcode="ring", effect=Effect.SHARED):
    """A ring with the stages of its type, all of them free. No operands. `sync` selects the mechanism.

    With `groups` it is each thread's groups of asynchronous copies (PTX ISA, `cp.async.commit_group`,
    `cp.async.wait_group`). A `wait` then covers only the thread's own copies, so a block barrier must follow it before other
    threads read, and another must lie between a `release` and the `acquire` of the same stage. `acquire` and `release` emit
    no code.

    With `mbarriers` (PTX ISA, "mbarrier") each stage has a full barrier, completed by the bytes of its copies, and an empty
    barrier, on which `readers` warps arrive; roles then need no other barrier. The operands name the stage and the parity of
    its phase: iteration t uses stage t % stages in the phase of parity t // stages % 2. `offset`: bytes from the start of
    dynamic shared memory to the mbarriers, two of 8 bytes a stage. `consumer_roles`: consumers that read the ring round-robin,
    each of the same number of warps; if there are several, one mbarrier for each follows those of the stages. One thread
    initializes the mbarriers: other threads may use them after a barrier, copies only after that thread's proxy fence as
    well."""

    num_operands = 0
    makes_tiles = False

    sync: str = "groups"
    offset: int = 0
    readers: int = 0
    consumer_roles: int = 1

    def verify(self) -> None:
        type_ = self.result.type
        self.require(isinstance(type_, RingType) and type_.stages >= 1, f"{type_} is not a ring")
        self.require(self.offset >= 0, f"{self.offset} lies before shared memory")
        self.require(self.sync in SYNCS, f"unknown way to signal, {self.sync}")
        self.require(self.offset % 8 == 0, "mbarriers are aligned to 8 bytes")
        self.require((self.readers > 0) == (self.sync == "mbarriers"), "warps read a ring of mbarriers, and of no other kind")
        self.require(
            1 <= self.consumer_roles <= (1 if self.sync == "groups" else 15), f"{self.consumer_roles} roles cannot take turns"
        )

    @property
    def bytes(self) -> int:
        """Shared memory of its mbarriers."""
        order_barrier_bytes = 8 * self.consumer_roles if self.consumer_roles > 1 else 0
        return 16 * self.result.ring.stages + order_barrier_bytes if self.sync == "mbarriers" else 0


@dataclass(eq=False, kw_only=True)
class RingOp(Op):
    """Base of operations on a ring, the first operand. `num_extra_operands` is the number of further operands (i32) of an
    `mbarriers` ring: the stage, and the parity of its phase."""

    num_extra_operands: ClassVar[int] = 0
    leading = (RingType,)
    num_results = 0

    @property
    def ring(self) -> Value:
        return self.operands[0]

    @property
    def stage(self) -> Value:
        """Only with `mbarriers`."""
        return self.operands[1]

    @property
    def parity(self) -> Value:
        """Parity of the stage's phase, only with `mbarriers`."""
        return self.operands[2]

    def verify(self) -> None:
        ring_op = self.ring.owner
        assert isinstance(ring_op, Ring)
        extra_operands = self.operands[1:]
        self.require(
            len(extra_operands) == (self.num_extra_operands if ring_op.sync == "mbarriers" else 0),
            "stage and parity are operands if the ring has mbarriers",
        )
        self.require(all(value.type == TileType(i32) for value in extra_operands), "stage and parity are i32 scalars")


@dataclass(eq=False, kw_only=True)
class Acquire(RingOp, opcode="acquire", effect=Effect.SHARED):
    """Wait until the next stage is free; copies or products may then be started into it. Operands: ring; with `mbarriers` also
    stage and parity, and `expected`, the bytes of those copies (`mbarrier.arrive.expect_tx`); 0 for products."""

    num_extra_operands = 2

    expected: int = 0

    def verify(self) -> None:
        super().verify()
        self.require(self.expected == 0 or len(self.operands) > 1, "bytes are expected at mbarriers alone")
        self.require(self.expected < 1 << 20, "an mbarrier counts up to 2^20 - 1 bytes")


@dataclass(eq=False, kw_only=True)
class Commit(RingOp, opcode="commit", effect=Effect.SHARED):
    """States that all copies into the stage acquired last are started (there may be none). Operand: ring."""


@dataclass(eq=False, kw_only=True)
class Wait(RingOp, opcode="wait", effect=Effect.SHARED):
    """Wait until the next stage is full. Operands: ring; with `mbarriers` also stage and parity. With `groups`, at most
    `pending` groups of copies may be unfinished afterwards, none of them of this stage; with `mbarriers` it is 0 and has no
    meaning."""

    num_extra_operands = 2

    pending: int = 0

    def verify(self) -> None:
        super().verify()
        self.require(self.pending >= 0, f"{self.pending} groups cannot be pending")
        self.require(len(self.operands) == 1 or not self.pending, "groups are pending of a ring of groups alone")


@dataclass(eq=False, kw_only=True)
class Drain(RingOp, opcode="drain", effect=Effect.SHARED):
    """Wait for all unfinished copies into a `groups` ring, whose stages are not read any more. Operand: ring."""


@dataclass(eq=False, kw_only=True)
class Release(RingOp, opcode="release", effect=Effect.SHARED):
    """The consumer no longer reads the stages it waited for, except the newest `unreleased`. With `mbarriers` it releases one
    stage, the second operand. Operands: ring; with `mbarriers` also the stage."""

    num_extra_operands = 1

    unreleased: int = 0

    def verify(self) -> None:
        super().verify()
        self.require(self.unreleased >= 0, f"{self.unreleased} stages cannot be unreleased")


@dataclass(eq=False, kw_only=True)
class OrderOp(RingOp):
    """Base of operations of roles that read a ring round-robin, each all stages of one tile (ping-pong). `consumer` is the
    role's index; role 0 is first. A phase parity distinguishes a phase only from the one before it, so a role that waited out
    of order could mistake data two phases early for its own. One mbarrier for each role therefore orders their waits."""

    consumer: int = 0

    def verify(self) -> None:
        super().verify()
        ring_op = self.ring.owner
        assert isinstance(ring_op, Ring)
        self.require(ring_op.consumer_roles > 1, "several roles take turns")
        self.require(0 <= self.consumer < ring_op.consumer_roles, f"no consumer {self.consumer} among {ring_op.consumer_roles}")


@dataclass(eq=False, kw_only=True)
class OrderWait(OrderOp, opcode="order_wait", effect=Effect.SHARED):
    """Wait until the role before has waited for all stages of its tile; role 0 need not wait the first time. Operands: ring,
    and the parity (i32) of the number of tiles that this role has read. `consumer` is the role's index."""

    num_extra_operands = 1

    @property
    def parity(self) -> Value:
        return self.operands[1]


@dataclass(eq=False, kw_only=True)
class OrderArrive(OrderOp, opcode="order_arrive", effect=Effect.SHARED):
    """This role has waited for all stages of its tile; the next role may wait. Operand: ring. `consumer` is the index of this
    role."""


@dataclass(eq=False, kw_only=True)
class Barrier(Op, opcode="barrier", effect=Effect.SHARED):
    """Synchronize all threads of the block, the role or the cluster; memory accesses before it are visible to all of them after
    it. No operands."""

    num_operands = num_results = 0
    is_barrier = True

    scope: str = "block"

    def verify(self) -> None:
        self.require(self.scope in SCOPES, f"unknown scope {self.scope}")


@dataclass(eq=False, kw_only=True)
class WarpBarrier(Op, opcode="warp_barrier", effect=Effect.SHARED):
    """Synchronize the threads of each warp (PTX ISA, `bar.warp.sync`): what they have read from a stage (`shared_load`), they
    have read before any of them goes on, so that one of them may release the stage for all. No operands."""

    num_operands = num_results = 0


@dataclass(eq=False, kw_only=True)
class ProxyFence(Op, opcode="proxy_fence", effect=Effect.SHARED):
    """Makes this thread's writes and copies to shared memory visible to the async proxy, which `wgmma` and tensor map copies
    use (PTX ISA, "Async proxy", `fence.proxy.async`). No operands."""

    num_operands = num_results = 0


@dataclass(eq=False, kw_only=True)
class SharedFree(Op, opcode="shared_free", effect=Effect.SHARED):
    """Ends the lifetime of the operands: buffers, scratch and rings, whose bytes may be allocated again. No copy into them is
    unfinished."""

    others = (SharedType, ScratchType, RingType)
    num_results = 0

    def verify(self) -> None:
        self.require(bool(self.operands), "it frees something")


@dataclass(eq=False, kw_only=True)
class Roles(Op, opcode="roles", effect=Effect.CONTROL):
    """Warp specialization: each region runs on its own warps, concurrently. Role i has `warps[i]` warps, numbered after those
    of the roles before it, and reallocates `registers[i]` registers a thread if that is not 0 (PTX ISA, `setmaxnreg`). If
    `alone[i]`, one thread runs the region and the other threads of the role do nothing. The roles synchronize at the end. No
    operands, no results. A region may use scalars, tensors and shared memory defined outside, but no tile: those are
    distributed over all threads of the block."""

    num_operands = num_results = 0
    has_regions = True

    names: tuple[str, ...]
    warps: tuple[int, ...]
    registers: tuple[int, ...]
    alone: tuple[bool, ...]

    def verify(self) -> None:
        count = len(self.regions)
        counts = {len(self.names), len(self.warps), len(self.registers), len(self.alone)}
        self.require(count >= 1 and counts == {count}, "one region for each role")
        self.require(len(set(self.names)) == count, "two roles share a name")
        self.require(min(self.warps) >= 1, "every role has a warp")
        self.require(all(not region.arguments for region in self.regions), "a role takes no arguments")
        rule = "registers are 24 to 256, in steps of 8, for whole groups of four warps"
        for warps, registers in zip(self.warps, self.registers, strict=True):
            is_valid = 24 <= registers <= 256 and registers % 8 == 0 and warps % 4 == 0
            self.require(not registers or is_valid, rule)
