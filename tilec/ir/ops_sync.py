"""Operations that order the threads of a block: rings of stages, barriers, fences, roles. Made by passes, never by an author.

A *ring* is a queue of stages between those who fill them and those who read them, first in, first out:

    acquire   the next stage is free: nobody reads it any more       by who fills it
    commit    the stage that was acquired is full once all copies that were started into it are there
    wait      the next stage is full                                 by who reads it
    release   stages are no longer read                              by who reads it

What signals this is the ring's `sync`. With `groups` it is the groups of asynchronous copies of every thread (PTX ISA,
`cp.async.commit_group`, `cp.async.wait_group`): a `wait` sees to a thread's own copies alone, so a barrier of the block must
follow it before others read, and one must lie between a `release` and the `acquire` that takes the stage; those two print
nothing. With `mbarriers` the four operations wait for and signal objects in shared memory, and roles need no barrier beside
them.

`tilec.passes.schedule.verify` holds every function to this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilec.ir.core import Effect, Op, Value
from tilec.ir.types import RingType, ScratchType, SharedType

SYNCS: Final = ("groups", "mbarriers")
SCOPES: Final = ("block", "role", "cluster")


@dataclass(eq=False, kw_only=True)
class Ring(Op, opcode="ring", effect=Effect.SHARED):
    """A ring of as many stages as its type says; all of them are free. No operands. `offset`: where its mbarriers begin, bytes
    from the start of dynamic shared memory, two of 8 bytes for each stage; with `groups` it takes none."""

    num_operands = 0
    makes_tiles = False

    sync: str = "groups"
    offset: int = 0

    def verify(self) -> None:
        type_ = self.result.type
        self.require(isinstance(type_, RingType) and type_.stages >= 1, f"{type_} is no ring")
        self.require(self.offset >= 0, f"{self.offset} lies before shared memory")
        self.require(self.sync in SYNCS, f"unknown way to signal, {self.sync}")
        self.require(self.offset % 8 == 0, "mbarriers are aligned to 8 bytes")

    @property
    def bytes(self) -> int:
        """Shared memory that it takes itself."""
        return 16 * self.result.ring.stages if self.sync == "mbarriers" else 0


@dataclass(eq=False, kw_only=True)
class RingOp(Op):
    """Base of what is done with a ring, the first operand."""

    num_operands = 1
    leading = (RingType,)
    num_results = 0

    @property
    def ring(self) -> Value:
        return self.operands[0]


@dataclass(eq=False, kw_only=True)
class Acquire(RingOp, opcode="acquire", effect=Effect.SHARED):
    """Wait until the next stage is free; copies may then be started into it. Operand: ring."""


@dataclass(eq=False, kw_only=True)
class Commit(RingOp, opcode="commit", effect=Effect.SHARED):
    """All copies into the stage that was acquired last are started (there may be none). Operand: ring."""


@dataclass(eq=False, kw_only=True)
class Wait(RingOp, opcode="wait", effect=Effect.SHARED):
    """Wait until the next stage is full. Operand: ring. With `groups`, at most `pending` groups of copies may then be
    unfinished, those of this stage not among them; with `mbarriers` it says nothing and is 0."""

    pending: int = 0

    def verify(self) -> None:
        self.require(self.pending >= 0, f"{self.pending} groups cannot be pending")


@dataclass(eq=False, kw_only=True)
class Drain(RingOp, opcode="drain", effect=Effect.SHARED):
    """Wait for all copies that are under way into a ring; its stages are not read any more. Operand: ring."""


@dataclass(eq=False, kw_only=True)
class Release(RingOp, opcode="release", effect=Effect.SHARED):
    """All stages that were waited for but the newest `held` are no longer read. Operand: ring."""

    held: int = 0

    def verify(self) -> None:
        self.require(self.held >= 0, f"{self.held} stages cannot be held")


@dataclass(eq=False, kw_only=True)
class Barrier(Op, opcode="barrier", effect=Effect.SHARED):
    """Wait for all threads of the block, the role or the cluster; what each did to memory before, the others see behind it. No
    operands."""

    num_operands = num_results = 0
    meets = True

    scope: str = "block"

    def verify(self) -> None:
        self.require(self.scope in SCOPES, f"unknown scope {self.scope}")


@dataclass(eq=False, kw_only=True)
class ProxyFence(Op, opcode="proxy_fence", effect=Effect.SHARED):
    """What this thread wrote or copied to shared memory is there for products of warpgroups too, which read it through a proxy
    of their own (PTX ISA, "Async proxy", `fence.proxy.async`). No operands."""

    num_operands = num_results = 0


@dataclass(eq=False, kw_only=True)
class SharedFree(Op, opcode="shared_free", effect=Effect.SHARED):
    """The bytes of buffers, scratch and rings may be taken again. Operands: those. Nothing is on its way to them."""

    others = (SharedType, ScratchType, RingType)
    num_results = 0

    def verify(self) -> None:
        self.require(bool(self.operands), "it frees something")


@dataclass(eq=False, kw_only=True)
class Roles(Op, opcode="roles", effect=Effect.CONTROL):
    """Parts of the block's warps run a region each, at the same time: role i has `warps[i]` of them, behind those of the roles
    before it, and `registers[i]` a thread where that is not 0 (PTX ISA, `setmaxnreg`). All have met when it ends. No operands,
    no results. A region sees scalars, tensors and shared memory from outside, and no tile: those are held by the block's
    threads."""

    num_operands = num_results = 0
    has_regions = True

    names: tuple[str, ...]
    warps: tuple[int, ...]
    registers: tuple[int, ...]

    def verify(self) -> None:
        count = len(self.regions)
        self.require(
            count >= 1 and count == len(self.names) == len(self.warps) == len(self.registers), "one region for each role"
        )
        self.require(len(set(self.names)) == count, "two roles share a name")
        self.require(min(self.warps) >= 1, "every role has a warp")
        self.require(all(not region.arguments for region in self.regions), "a role takes no arguments")
        rule = "registers are 24 to 256, in steps of 8, for whole groups of four warps"
        for warps, registers in zip(self.warps, self.registers, strict=True):
            fits = 24 <= registers <= 256 and registers % 8 == 0 and warps % 4 == 0
            self.require(not registers or fits, rule)


SHARED_TYPES: Final = (SharedType, RingType)
