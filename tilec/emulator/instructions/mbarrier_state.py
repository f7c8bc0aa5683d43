"""The live mbarriers of a wave: who has arrived, who waits, and the bulk copies that count on them.

Only threads of the block that owns a barrier wait on it; peers of its cluster may arrive. An arrival orders the accesses before
it for a wait if the scope of each contains the other's thread (PTX ISA, mbarrier: the default scope is `.cta`), and only if it
releases and the wait acquires. A relaxed wait followed by a fence acquires there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.machine.access import Access
from tilec.emulator.machine.accesses import Accesses
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.launch_state import LaunchState
from tilec.emulator.machine.locator import Locator
from tilec.emulator.machine.sources import Source
from tilec.emulator.machine.subsystem import Subsystem
from tilec.emulator.machine.wave import Wave
from tilec.emulator.ordering.races import LANE_BITS
from tilec.emulator.ordering.transaction_barrier import BarrierMisuse, TransactionBarrier
from tilec.emulator.ptx.syntax import Instruction

Index = NDArray[np.int64]
Token = NDArray[np.int64]
BYTES: Final = 8
ARRIVAL: Final = ("release", "cta")
WAIT: Final = ("acquire", "cta")
"""Order and scope of an operation that names none."""
T = TypeVar("T")


class Landing(Protocol):
    """A copy whose bytes a barrier has counted: `land` when a thread has seen the count, `settle` when one acquires it."""

    def land(self) -> None: ...
    def settle(self, observer: int) -> None: ...


@dataclass(slots=True)
class Record:
    """A live barrier at `index` in memory: its state, the tokens released by arrivals (`arrival_token` in the current phase,
    `released` in the last complete one; `remote_token` and `remote_released`: those of peers), blocked lanes, bulk copies in
    flight (`copies_in_flight`), completed in the current phase (`completed_copies`), and completed in an earlier one that no
    thread has observed yet (`unobserved_copies`). `block`: the block in the wave that owns it; `made`: the lane that made it;
    `observed`: the phases whose completion some thread has observed; `remote_arrivals`: lane, time, phase and instruction of
    the arrivals of peers."""

    index: int
    state: TransactionBarrier
    block: int = 0
    made: int = 0
    observed: int = 0
    remote_arrivals: list[tuple[int, int, int, Instruction]] = field(default_factory=list[tuple[int, int, int, Instruction]])
    arrival_token: Token | None = None
    released: Token | None = None
    remote_token: Token | None = None
    remote_released: Token | None = None
    blocked_lanes: Index = field(default_factory=lambda: np.zeros(0, np.int64))
    copies_in_flight: list[Callable[[], int]] = field(default_factory=list[Callable[[], int]])
    completed_copies: list[Landing] = field(default_factory=list["Landing"])
    unobserved_copies: list[Landing] = field(default_factory=list["Landing"])


class Mbarriers(Subsystem):
    """The live barriers of a wave by index in memory."""

    def __init__(
        self, launch: LaunchState, wave: Wave, random: np.random.Generator, locator: Locator, accesses: Accesses
    ) -> None:
        self.seed, self.wave, self.random, self.locator, self.accesses = launch.seed, wave, random, locator, accesses
        self.faults, self.ordering = accesses.faults, accesses.ordering
        self.live: dict[int, Record] = {}
        self._relaxed_waits: dict[int, list[tuple[Record, int, str, Token | None]]] = {}
        self.ordering.synchronise.on_acquire.append(self._acquire_late)

    def clear(self) -> None:
        self.live.clear()
        self._relaxed_waits.clear()

    def find(
        self, frame: Frame, address: Source, instruction: Instruction, space: str = "shared"
    ) -> Iterator[tuple[Record, Index]]:
        """The barriers that lanes of the frame address in `space`, with those lanes; an address without a live barrier is a
        fault."""
        found = self.locator.locate(frame, address.value(frame), address.poison(frame), space, BYTES, instruction, write=False)
        for index in np.unique(found.index):
            lanes = found.lanes[found.index == index]
            record = self.live.get(int(index))
            if record is None:
                text = "an operation on memory that holds no mbarrier"
                self.faults.add("mbarrier", text, instruction, int(lanes[0]), index=int(index), count=len(lanes))
                continue
            self.check_made(record, lanes, instruction)
            yield record, lanes

    def check_made(self, record: Record, lanes: Index, instruction: Instruction) -> None:
        """Reports these lanes, which use the barrier, if they are not ordered after its initialisation."""
        index = np.full(len(lanes), record.index)
        racing = self.ordering.shadow.read(index, BYTES, lanes, True)
        if racing is not None and self._unknown(record, lanes[racing.any(axis=1)]):
            touched = Access(None, index, None, BYTES, lanes)
            self.accesses.report_race(touched, racing, instruction, "uses an mbarrier that another thread makes")

    def _unknown(self, record: Record, lanes: Index) -> bool:
        """Whether one of these lanes does not know the barrier through `fence.mbarrier_init` either."""
        made = np.array([record.made])
        time = self.ordering.shadow.writes[record.index >> self.ordering.shadow.shift] >> LANE_BITS
        return not all(self.ordering.barrier_inits.knows(int(lane), made, np.array([time]))[0] for lane in lanes)

    def attempt(self, record: Record, lane: int, instruction: Instruction, action: Callable[[], T]) -> T | None:
        """Runs an operation on the state; misuse is a fault. Wakes the blocked lanes if the phase completes."""
        phase_before = record.state.phase
        result: T | None = None
        try:
            result = action()
        except BarrierMisuse as misuse:
            self.faults.add("mbarrier", f"an mbarrier {misuse}", instruction, lane, index=record.index)
        if record.state.phase != phase_before:
            record.released, record.arrival_token = record.arrival_token, None
            record.remote_released, record.remote_token = record.remote_token, None
            record.unobserved_copies += record.completed_copies
            record.completed_copies = []
            if len(record.blocked_lanes):
                self.wave.wake(record.blocked_lanes, advance=False)
                record.blocked_lanes = np.zeros(0, np.int64)
        return result

    def arrive(
        self, record: Record, lanes: Index, counts: list[int], instruction: Instruction, how: tuple[str, str] = ARRIVAL
    ) -> list[int]:
        """Each lane arrives `counts` times, in `how` order and scope; returns the phases of the arrivals."""
        local, remote = self._tokens(record, lanes, how, instruction)
        phases: list[int] = []
        for lane, count in zip(lanes, counts, strict=True):
            record.arrival_token = _merged(record.arrival_token, local)
            record.remote_token = _merged(record.remote_token, remote)
            phase = self.attempt(record, int(lane), instruction, lambda count=count: record.state.arrive(count))
            phases.append(record.state.phase if phase is None else phase)
        return phases

    def _tokens(
        self, record: Record, lanes: Index, how: tuple[str, str], instruction: Instruction
    ) -> tuple[Token | None, Token | None]:
        """What arrivals of these lanes publish: those of the barrier's own block, and those of peers."""
        clocks, synchronise = self.ordering.clocks, self.ordering.synchronise
        relaxed, wide = how[0] == "relaxed", how[1] == "cluster"
        own = self.wave.block[lanes] == record.block
        if own.all():
            fenced = synchronise.fenced(lanes, own_block=True) if relaxed else None
            return clocks.signal(lanes, fenced) if relaxed else clocks.release(lanes), None
        peers, near = lanes[~own], lanes[own]
        for lane in peers.tolist():
            record.remote_arrivals.append((lane, clocks.now, record.state.phase, instruction))
        local: Token | None = None
        if len(near):
            fenced = synchronise.fenced(near, own_block=True) if relaxed else None
            local = clocks.signal(near, fenced) if relaxed else clocks.release(near)
        if relaxed or not wide:
            return local, clocks.signal(peers, synchronise.fenced(peers) if wide else None)
        return local, clocks.release(peers)

    def complete_copies(self, record: Record, *, all_copies: bool = False) -> bool:
        """Completes copies in flight that count on the barrier: all of them, or under a seed a random subset. Returns whether
        there was one."""
        completing = [copy for copy in record.copies_in_flight if all_copies or self.seed == 0 or self.random.random() < 0.5]
        record.copies_in_flight = [copy for copy in record.copies_in_flight if copy not in completing]
        for copy in completing:
            copy()
        return bool(completing)

    def advance(self) -> bool:
        """Completes all copies in flight because no thread can run. Returns whether that woke a lane."""
        woken = False
        for record in list(self.live.values()):
            blocked_before = len(record.blocked_lanes)
            woken |= self.complete_copies(record, all_copies=True) and len(record.blocked_lanes) < blocked_before
        return woken

    def observe(self, record: Record, lanes: Index, how: tuple[str, str] = WAIT) -> None:
        """These lanes observed the completion of the last phase by a wait of `how` order and scope."""
        record.observed = record.state.phase
        record.remote_arrivals = [arrival for arrival in record.remote_arrivals if arrival[2] >= record.observed]
        if how[0] == "acquire":
            self.acquire_phase(record, lanes, how[1])
            return
        for copy in record.unobserved_copies:
            copy.land()
        self.ordering.clocks.hear(lanes, _merged(record.released, record.remote_released))
        token = _merged(record.released, record.remote_released if how[1] == "cluster" else None)
        for lane in lanes.tolist():
            self._relaxed_waits.setdefault(lane, []).append((record, record.state.phase, how[1], token))

    def _acquire_late(self, lane: int, reach: int) -> None:
        """A fence with acquire semantics after relaxed waits of the lane."""
        for record, phase, scope, token in self._relaxed_waits.pop(lane, ()):
            wide = scope == "cluster" and (not reach or reach >= self.wave.cluster_size)
            if phase == record.state.phase:
                self.acquire_phase(record, np.array([lane]), "cluster" if wide else "cta")
            elif token is not None and wide:
                self.ordering.clocks.acquire(np.array([lane]), token)

    def acquire_phase(self, record: Record, lanes: Index, scope: str = "cta") -> None:
        """These lanes acquire what the last phase released, within `scope`, and see the copied bytes. The bytes of new copies
        are stamped as written by one of these lanes, and acquiring the barrier orders a lane after everything that this lane
        did so far. Each seed selects another lane. Its knowledge of other lanes is not included."""
        clocks = self.ordering.clocks
        if record.unobserved_copies:
            observer = int(lanes[-1 - self.seed % len(lanes)])
            for copy in record.unobserved_copies:
                copy.settle(observer)
            record.unobserved_copies = []
            token = np.zeros(self.wave.lane_count, np.int64)
            token[observer] = clocks.now
            clocks.now += 1
            record.released = token if record.released is None else np.maximum(record.released, token)
        token = _merged(record.released, record.remote_released if scope == "cluster" else None)
        if token is not None:
            clocks.acquire(lanes, token)
        clocks.hear(lanes, record.remote_released)


def _merged(first: Token | None, second: Token | None) -> Token | None:
    return second if first is None else first if second is None else np.maximum(first, second)
