"""Signals between roles: mbarriers that say that something happened, and nothing of who may use a buffer next.

    signals      a sequence of signals, for each part of a role
    signal       the threads of a part have done all that precedes             one of its `arrivals` for each warp
    signal_mma   the products that a thread has started so far are complete
    await        wait for the next signal

Made by passes, never by an author. Signal number t of a part uses mbarrier t % stages in the phase of parity t // stages % 2.
A ring (`sync_ops`) also has mbarriers for its free stages, and its operations acquire and release them. Signals have none: what
is signalled in one direction says what is free in the other. `tilec.passes.schedule.checks.tmem_order` shows that signals order
each access after those before it, and that a signal is awaited before its mbarrier is used again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from tilec.ir.core import Effect, Op, Value
from tilec.ir.types import RingType, TileType, i32

OWN: Final = -1
"""The part of the executing threads: group g of four warps of a role has part g."""
MBARRIER_BYTES: Final = 8


@dataclass(eq=False, kw_only=True)
class Signals(Op, opcode="signals", effect=Effect.SHARED):
    """Sequences of signals, one for each of `parts` parts, over as many mbarriers each as its type has stages. No operands.
    `offset`: bytes from the start of dynamic shared memory to the mbarriers. `arrivals`: the warps that signal one, or 1 if
    products do. One thread initializes the mbarriers: others may use them after that thread's proxy fence and a barrier."""

    num_operands = 0
    makes_tiles = False

    offset: int = 0
    arrivals: int = 1
    parts: int = 1

    @property
    def bytes(self) -> int:
        """Shared memory of its mbarriers."""
        return MBARRIER_BYTES * self.result.ring.stages * self.parts

    def verify(self) -> None:
        type_ = self.result.type
        self.require(isinstance(type_, RingType) and type_.stages >= 1, f"{type_} is no ring")
        self.require(self.offset >= 0 and self.offset % MBARRIER_BYTES == 0, "mbarriers are aligned to 8 bytes")
        self.require(self.arrivals >= 1 and self.parts >= 1, "some warp signals some part")


@dataclass(eq=False, kw_only=True)
class SignalOp(Op):
    """Base of operations on signals, the first operand; the second is the stage (i32). `part`: which part; `OWN`: that of each
    group of four warps of the role."""

    leading = (RingType,)
    num_results = 0
    num_scalars: ClassVar[int] = 1

    part: int = OWN

    @property
    def ring(self) -> Value:
        """The signals."""
        return self.operands[0]

    @property
    def stage(self) -> Value:
        return self.operands[1]

    @property
    def signals(self) -> Signals:
        """The operation that makes them."""
        assert isinstance(self.ring.owner, Signals)
        return self.ring.owner

    def verify(self) -> None:
        self.require(isinstance(self.ring.owner, Signals), "its first operand is signals")
        scalars = self.operands[1:]
        self.require(len(scalars) == self.num_scalars, f"{self.num_scalars} scalars follow the signals")
        self.require(all(value.type == TileType(i32) for value in scalars), "stage and parity are i32 scalars")
        self.require(OWN <= self.part < self.signals.parts, f"there is no part {self.part}")


@dataclass(eq=False, kw_only=True)
class Signal(SignalOp, opcode="signal", effect=Effect.SHARED):
    """Signal that these threads have done all that precedes; each warp arrives. Operands: signals, stage (i32)."""

    num_operands = None


@dataclass(eq=False, kw_only=True)
class SignalMma(SignalOp, opcode="signal_mma", effect=Effect.SHARED):
    """Signal once all products that this thread has started so far are complete (PTX ISA, "tcgen05.commit"). Operands: signals,
    stage (i32)."""

    num_operands = None


@dataclass(eq=False, kw_only=True)
class Await(SignalOp, opcode="await", effect=Effect.SHARED):
    """Wait for the next signal. Operands: signals, stage (i32), parity of its phase (i32)."""

    num_operands = None
    num_scalars = 2

    @property
    def parity(self) -> Value:
        return self.operands[2]
