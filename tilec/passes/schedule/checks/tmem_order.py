"""The order of accesses to tensor memory that signals make, by vector clocks: part of the simulation of `ring_check`.

In: what roles do, in an order that `ring_check` simulates. Out: nothing, or a VerifyError that names the operation. Rules:

- An access is ordered after every conflicting access before it: by a signal that was awaited, or in the same role. A product's
  accesses are complete only once a signal of products was awaited, except for a product that adds to the same accumulators,
  which runs after it (PTX ISA, memory consistency of `tcgen05`: pipelined instructions).
- Sums are loaded, scaled and added to only if a product or a fill made them and nothing was stored over them; operand A is read
  only if it was stored and no product wrote over it.
- Nothing is overwritten, or left at the end, that was not loaded, read as operand A, scaled or added to.
- Signal t uses the mbarrier of signal t - stages. Roles that await signal t - stages did so before signal t is sent, and its
  sender knows of it, so that no wait for a parity can meet a phase two later.
- Every signal is awaited.

A role with parts runs once for each part (`Role.part`): groups of four warps, whose accesses are of their own tile alone
(`signal_check`). Which signal a wait is for follows from its number alone, so another interleaving has the same order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tilec.ir.core import Op, Value, VerifyError
from tilec.ir.ops.signal_ops import OWN, Await, Signal, SignalMma, SignalOp, Signals
from tilec.ir.ops.tmem_chain_ops import TileProduct, TmemFill, TmemOperandMma, TmemScale, TmemStore
from tilec.ir.ops.tmem_ops import TmemAlloc, TmemLoad
from tilec.passes.schedule.checks.op_location import at
from tilec.passes.schedule.checks.ring_state import Role

SUMS, OPERAND = "sums", "operand A"
Clock = Counter["tuple[Role, bool]"]
"""What is known of a role's threads (False) and of the completion of its products (True): how many steps."""


@dataclass(slots=True)
class _Use:
    """An access: step `time` of a role's threads or products."""

    who: tuple[Role, bool]
    time: int
    opcode: str


@dataclass(slots=True)
class _Cell:
    """A tile of a stage: what it has, whether something was computed from it, the last write, and the reads since."""

    holds: str = "nothing"
    used: bool = True
    writes: list[_Use] = field(default_factory=list[_Use])
    reads: list[_Use] = field(default_factory=list[_Use])


@dataclass(slots=True)
class _Sequence:
    """The signals of a part: what each one tells, and when each role awaited them."""

    sent: list[Clock] = field(default_factory=list[Clock])
    awaited: dict[Role, list[int]] = field(default_factory=dict[Role, list[int]])


@dataclass(eq=False, slots=True)
class TmemOrder:
    """Signals and tensor memory of a run."""

    sequences: dict[tuple[Value, int], _Sequence] = field(default_factory=dict[tuple[Value, int], _Sequence])
    cells: dict[tuple[Value, int, int], _Cell] = field(default_factory=dict[tuple[Value, int, int], _Cell])
    clocks: dict[Role, Clock] = field(default_factory=dict[Role, Clock])
    known: set[Value] = field(default_factory=set[Value])  # signals whose mbarriers other threads may use
    fenced: set[Value] = field(default_factory=set[Value])

    def make(self, op: Signals) -> None:
        """Signals, none of which was sent."""
        for part in range(op.parts):
            self.sequences[op.result, part] = _Sequence()

    def signals(self) -> set[Value]:
        """All signals."""
        return {ring for ring, _ in self.sequences}

    def fence(self) -> None:
        """A proxy fence after the initialization."""
        self.fenced |= self.signals()

    def synchronize(self) -> None:
        """A barrier of the block."""
        self.known |= self.fenced

    def send(self, op: Signal | SignalMma, role: Role, env: dict[Value, int]) -> None:
        """A signal by the threads of a role, or by its products."""
        sequence = self._sequence(op, role)
        number, stages = len(sequence.sent), op.ring.ring.stages
        self._named(op, (number % stages,), env)
        clock = self._clock(role)
        for waiter, times in sequence.awaited.items():
            if len(times) > number - stages >= 0 and waiter is not role and times[number - stages] > clock[waiter, False]:
                raise VerifyError(f"{at(op)}: a wait for the signal {stages} before may still be under way")
        clock[role, False] += 1
        at_signal = Clock(clock)
        if isinstance(op, SignalMma):  # its arrival orders products alone, and what their start shows of the thread
            at_signal = Clock({(role, False): clock[role, False], (role, True): self._started(role)})
        sequence.sent.append(at_signal)

    def is_sent(self, op: Await, role: Role, env: dict[Value, int]) -> bool:
        """Whether the signal that a role waits for was sent; the role then knows what it tells."""
        sequence = self._sequence(op, role)
        times, stages = sequence.awaited.setdefault(role, []), op.ring.ring.stages
        number = len(times)
        self._named(op, (number % stages, number // stages % 2), env)
        if len(sequence.sent) > number + stages:
            raise VerifyError(f"{at(op)}: a later signal of the same mbarrier may have been sent")
        if len(sequence.sent) <= number:
            return False
        clock = self._clock(role)
        clock |= sequence.sent[number]
        clock[role, False] += 1
        times.append(clock[role, False])
        return True

    def multiply(self, op: TileProduct, role: Role, env: dict[Value, int]) -> None:
        """A product reads operand A and writes, or adds to, sums."""
        use = _Use((role, True), self._started(role) + 1, op.opcode)
        accumulate = env.get(op.accumulate)
        if accumulate is None:
            raise VerifyError(f"{at(op)}: whether it accumulates is unknown")
        if isinstance(op, TmemOperandMma):
            cell = self._cell(op, op.left, op.left_stage, op.tile, env)
            self._require(op, cell, OPERAND)
            self._access(op, role, cell, use, writes=False)
            cell.used = True
        cell = self._cell(op, op.accumulator, op.accumulator_stage, op.tile, env)
        if accumulate:
            self._require(op, cell, SUMS)
        self._access(op, role, cell, use, writes=True, adds=bool(accumulate))
        self._make(op, cell, SUMS, keeps=bool(accumulate))
        self._products[role] = use.time

    def load(self, op: TmemLoad, role: Role, env: dict[Value, int]) -> None:
        """Threads load sums."""
        cell = self._cell(op, op.buffer, op.stage, role.part, env)
        self._require(op, cell, SUMS)
        self._access(op, role, cell, self._step(op, role), writes=False)
        cell.used = True

    def change(self, op: TmemFill | TmemScale, role: Role, env: dict[Value, int]) -> None:
        """Threads make sums, or scale them."""
        cell = self._cell(op, op.buffer, op.stage, role.part, env)
        if isinstance(op, TmemScale):
            self._require(op, cell, SUMS)
        self._access(op, role, cell, self._step(op, role), writes=True)
        self._make(op, cell, SUMS, keeps=isinstance(op, TmemScale))

    def store(self, op: TmemStore, role: Role, env: dict[Value, int]) -> None:
        """Threads store operand A over sums."""
        cell = self._cell(op, op.buffer, op.stage, role.part, env)
        self._access(op, role, cell, self._step(op, role), writes=True)
        self._make(op, cell, OPERAND)

    def end(self, name: str) -> None:
        """All roles have ended."""
        for sequence in self.sequences.values():
            if all(len(times) < len(sequence.sent) for times in sequence.awaited.values()) and sequence.sent:
                raise VerifyError(f"{name}: nobody awaits the last signal of a part")
        if not all(cell.used for cell in self.cells.values()):
            raise VerifyError(f"{name}: nothing takes what a tile of tensor memory has at the end")
        for role, started in self._products.items():
            if all(clock[role, True] < started for clock in self.clocks.values()):
                raise VerifyError(f"{name}: products are under way at the end")

    def progress(self) -> int:
        """A number that grows whenever a signal is sent or awaited."""
        return sum(
            len(sequence.sent) + sum(map(len, sequence.awaited.values())) for sequence in self.sequences.values()
        )  # fmt: skip

    _products: dict[Role, int] = field(default_factory=dict[Role, int])  # products that each role has started

    def _started(self, role: Role) -> int:
        return self._products.get(role, 0)

    def _clock(self, role: Role) -> Clock:
        return self.clocks.setdefault(role, Clock())

    def _step(self, op: Op, role: Role) -> _Use:
        clock = self._clock(role)
        clock[role, False] += 1
        return _Use((role, False), clock[role, False], op.opcode)

    def _access(self, op: Op, role: Role, cell: _Cell, use: _Use, *, writes: bool, adds: bool = False) -> None:
        clock = self._clock(role)
        for earlier in [*cell.writes, *(cell.reads if writes else [])]:
            pipelined = adds and earlier.who == use.who and earlier in cell.writes
            own = earlier.who == (role, False)
            if not pipelined and not own and clock[earlier.who] < earlier.time:
                does = "write" if earlier in cell.writes else "read"
                raise VerifyError(f"{at(op)}: {earlier.opcode} may still {does} that tile of tensor memory")
        if writes:
            cell.writes, cell.reads = [use], []
        else:
            cell.reads.append(use)

    def _make(self, op: Op, cell: _Cell, holds: str, *, keeps: bool = False) -> None:
        """A tile has something else, made of what it had if it `keeps` that."""
        if not keeps and not cell.used:
            raise VerifyError(f"{at(op)} overwrites {cell.holds} that nothing took")
        cell.holds, cell.used = holds, False

    def _require(self, op: Op, cell: _Cell, holds: str) -> None:
        if cell.holds != holds:
            raise VerifyError(f"{at(op)} takes {holds} from a tile that has {cell.holds}")

    def _cell(self, op: Op, buffer: Value, stage: Value, tile: int, env: dict[Value, int]) -> _Cell:
        index = env.get(stage)
        if index is None or not 0 <= index < buffer.tmem.stages:
            raise VerifyError(f"{at(op)}: stage {index} of {buffer.tmem.stages}")
        if not is_signalled(buffer):
            raise VerifyError(f"{at(op)}: its buffer belongs to a ring")
        return self.cells.setdefault((buffer, index, tile), _Cell())

    def _sequence(self, op: SignalOp, role: Role) -> _Sequence:
        if op.ring not in self.known:
            raise VerifyError(f"{at(op)} uses mbarriers that others do not know of yet")
        return self.sequences[op.ring, role.part if op.part == OWN else op.part]

    def _named(self, op: SignalOp, wanted: tuple[int, ...], env: dict[Value, int]) -> None:
        named = tuple(env.get(value) for value in op.operands[1:])
        if named != wanted:
            raise VerifyError(f"{at(op)} names stage and parity {named} where {wanted} come next")


def is_signalled(buffer: Value) -> bool:
    """Whether signals, not a ring, order the accesses of a buffer in tensor memory."""
    return isinstance(buffer.owner, TmemAlloc) and isinstance(buffer.owner.ring.owner, Signals)
