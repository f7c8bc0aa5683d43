"""Operations that order the threads of a block: rings of stages, barriers, fences, roles. Made by passes, never by an author.

A *ring* is a queue of stages between those who fill them and those who read them, first in, first out:

    acquire   the next stage is free: nobody reads it any more       by who fills it
    commit    the stage that was acquired is full once all copies that were started into it are there
    wait      the next stage is full                                 by who reads it
    release   stages are no longer read                              by who reads it

What signals this is the ring's `sync`. With `groups` it is the groups of asynchronous copies of every thread (PTX ISA,
`cp.async.commit_group`, `cp.async.wait_group`): a `wait` sees to a thread's own copies alone, so a barrier of the block must
follow it before others read, and one must lie between a `release` and the `acquire` that takes the stage; those two print
nothing. With `mbarriers` the four operations wait for and signal objects in shared memory (PTX ISA, "mbarrier"), two for each
stage: one that the bytes of its copies complete, and one that its readers arrive at. Roles then need no barrier beside them.
Which stage they mean, and in which round of the ring, is given beside it: turn t is stage t % stages in the round of parity
t // stages % 2.

Several roles may read a ring in turns, each all stages of a tile: it then has an mbarrier more for each of them, and

    take_turn   all stages before those of this tile were waited for, by the others           by the role whose tile is next
    pass_turn   all stages of this tile were waited for; the tile behind it is the next role's by the same

The parity of a stage tells a round from the one before alone, so a role that waited for a stage without its turn could take
what lies there two rounds early for its own.

`tilec.passes.schedule.verify` holds every function to this.
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
    """A ring of as many stages as its type says; all of them are free. No operands. `offset`: where its mbarriers begin, bytes
    from the start of dynamic shared memory, two of 8 bytes for each stage; with `groups` it takes none. `readers`: warps that
    release a stage before it is free, with `mbarriers`. `takers`: roles that read it in turns, of as many warps each; where
    there are several, an mbarrier for each lies behind those of the stages. One thread makes the mbarriers: others know of
    them when all have met, and copies once it has fenced its proxy as well."""

    num_operands = 0
    makes_tiles = False

    sync: str = "groups"
    offset: int = 0
    readers: int = 0
    takers: int = 1

    def verify(self) -> None:
        type_ = self.result.type
        self.require(isinstance(type_, RingType) and type_.stages >= 1, f"{type_} is no ring")
        self.require(self.offset >= 0, f"{self.offset} lies before shared memory")
        self.require(self.sync in SYNCS, f"unknown way to signal, {self.sync}")
        self.require(self.offset % 8 == 0, "mbarriers are aligned to 8 bytes")
        self.require((self.readers > 0) == (self.sync == "mbarriers"), "warps read a ring of mbarriers, and of no other kind")
        self.require(1 <= self.takers <= (1 if self.sync == "groups" else 15), f"{self.takers} roles cannot take turns")

    @property
    def bytes(self) -> int:
        """Shared memory that it takes itself."""
        turns = 8 * self.takers if self.takers > 1 else 0
        return 16 * self.result.ring.stages + turns if self.sync == "mbarriers" else 0


@dataclass(eq=False, kw_only=True)
class RingOp(Op):
    """Base of what is done with a ring, the first operand. `takes` is how many numbers (i32) stand behind one of mbarriers: the
    stage, and the parity of its round."""

    takes: ClassVar[int] = 0
    leading = (RingType,)
    num_results = 0

    @property
    def ring(self) -> Value:
        return self.operands[0]

    @property
    def stage(self) -> Value:
        """Of a ring of mbarriers."""
        return self.operands[1]

    @property
    def parity(self) -> Value:
        """Of the stage's round, in a ring of mbarriers."""
        return self.operands[2]

    def verify(self) -> None:
        made = self.ring.owner
        assert isinstance(made, Ring)
        numbers = self.operands[1:]
        self.require(len(numbers) == (self.takes if made.sync == "mbarriers" else 0), "stage and parity stand beside mbarriers")
        self.require(all(value.type == TileType(i32) for value in numbers), "stage and parity are i32 scalars")


@dataclass(eq=False, kw_only=True)
class Acquire(RingOp, opcode="acquire", effect=Effect.SHARED):
    """Wait until the next stage is free; copies may then be started into it. Operands: ring; of mbarriers stage and parity, and
    `expected`, the bytes that those copies bring."""

    takes = 2

    expected: int = 0

    def verify(self) -> None:
        super().verify()
        self.require((self.expected > 0) == (len(self.operands) > 1), "bytes are expected at mbarriers alone")
        self.require(self.expected < 1 << 20, "an mbarrier counts up to 2^20 - 1 bytes")


@dataclass(eq=False, kw_only=True)
class Commit(RingOp, opcode="commit", effect=Effect.SHARED):
    """All copies into the stage that was acquired last are started (there may be none). Operand: ring."""


@dataclass(eq=False, kw_only=True)
class Wait(RingOp, opcode="wait", effect=Effect.SHARED):
    """Wait until the next stage is full. Operands: ring; of mbarriers stage and parity. With `groups`, at most `pending` groups
    of copies may then be unfinished, those of this stage not among them; with `mbarriers` it says nothing and is 0."""

    takes = 2

    pending: int = 0

    def verify(self) -> None:
        super().verify()
        self.require(self.pending >= 0, f"{self.pending} groups cannot be pending")
        self.require(len(self.operands) == 1 or not self.pending, "groups are pending of a ring of groups alone")


@dataclass(eq=False, kw_only=True)
class Drain(RingOp, opcode="drain", effect=Effect.SHARED):
    """Wait for all copies that are under way into a ring of groups; its stages are not read any more. Operand: ring."""


@dataclass(eq=False, kw_only=True)
class Release(RingOp, opcode="release", effect=Effect.SHARED):
    """All stages that were waited for but the newest `held` are no longer read: of mbarriers, one, which is given. Operands:
    ring; of mbarriers the stage."""

    takes = 1

    held: int = 0

    def verify(self) -> None:
        super().verify()
        self.require(self.held >= 0, f"{self.held} stages cannot be held")


@dataclass(eq=False, kw_only=True)
class TurnOp(RingOp):
    """Base of what roles do that read a ring in turns; the first turn is that of `place` 0, and so on round."""

    place: int = 0

    def verify(self) -> None:
        super().verify()
        made = self.ring.owner
        assert isinstance(made, Ring)
        self.require(made.takers > 1, "several roles take turns")
        self.require(0 <= self.place < made.takers, f"no place {self.place} among {made.takers}")


@dataclass(eq=False, kw_only=True)
class TakeTurn(TurnOp, opcode="take_turn", effect=Effect.SHARED):
    """Wait until the role before has passed the turn on; the first has it from the start. Operands: ring, and the parity (i32)
    of the role's own turns so far. `place` is the role's."""

    takes = 1

    @property
    def parity(self) -> Value:
        return self.operands[1]


@dataclass(eq=False, kw_only=True)
class PassTurn(TurnOp, opcode="pass_turn", effect=Effect.SHARED):
    """All stages of this turn were waited for; the turn is the next role's. Operand: ring. `place` is that of who had it."""


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
    """What this thread wrote or copied to shared memory is there for products of warpgroups and copies through tensor maps too,
    which use it through a proxy of their own (PTX ISA, "Async proxy", `fence.proxy.async`). No operands."""

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
    before it, and `registers[i]` a thread where that is not 0 (PTX ISA, `setmaxnreg`). Where `alone[i]`, one thread runs the
    region and the rest of the role does nothing. All have met when it ends. No operands, no results. A region sees scalars,
    tensors and shared memory from outside, and no tile: those are held by the block's threads."""

    num_operands = num_results = 0
    has_regions = True

    names: tuple[str, ...]
    warps: tuple[int, ...]
    registers: tuple[int, ...]
    alone: tuple[bool, ...]

    def verify(self) -> None:
        count = len(self.regions)
        told = {len(self.names), len(self.warps), len(self.registers), len(self.alone)}
        self.require(count >= 1 and told == {count}, "one region for each role")
        self.require(len(set(self.names)) == count, "two roles share a name")
        self.require(min(self.warps) >= 1, "every role has a warp")
        self.require(all(not region.arguments for region in self.regions), "a role takes no arguments")
        rule = "registers are 24 to 256, in steps of 8, for whole groups of four warps"
        for warps, registers in zip(self.warps, self.registers, strict=True):
            fits = 24 <= registers <= 256 and registers % 8 == 0 and warps % 4 == 0
            self.require(not registers or fits, rule)


SHARED_TYPES: Final = (SharedType, RingType)
