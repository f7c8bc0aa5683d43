"""The live mbarriers of a wave: who has arrived, who waits, and the bulk copies that count on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

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
from tilec.emulator.ordering.transaction_barrier import BarrierMisuse, TransactionBarrier
from tilec.emulator.ptx.syntax import Instruction

Index = NDArray[np.int64]
Token = NDArray[np.int64]
BYTES: Final = 8
T = TypeVar("T")


@dataclass(slots=True)
class Record:
    """A live barrier at `index` in memory: its state, the tokens released by arrivals (`arrival_token` in the current phase,
    `released` in the last complete one), blocked lanes, bulk copies in flight (`copies_in_flight`), completed in the current
    phase (`completed_copies`), and completed in an earlier one that no thread has observed yet (`unobserved_copies`)."""

    index: int
    state: TransactionBarrier
    arrival_token: Token | None = None
    released: Token | None = None
    blocked_lanes: Index = field(default_factory=lambda: np.zeros(0, np.int64))
    copies_in_flight: list[Callable[[], int]] = field(default_factory=list[Callable[[], int]])
    completed_copies: list[Callable[[int], None]] = field(default_factory=list[Callable[[int], None]])
    unobserved_copies: list[Callable[[int], None]] = field(default_factory=list[Callable[[int], None]])


class Mbarriers(Subsystem):
    """The live barriers of a wave by index in memory."""

    def __init__(
        self, launch: LaunchState, wave: Wave, random: np.random.Generator, locator: Locator, accesses: Accesses
    ) -> None:
        self.seed, self.wave, self.random, self.locator, self.accesses = launch.seed, wave, random, locator, accesses
        self.faults, self.ordering = accesses.faults, accesses.ordering
        self.live: dict[int, Record] = {}

    def clear(self) -> None:
        self.live.clear()

    def find(self, frame: Frame, address: Source, instruction: Instruction) -> Iterator[tuple[Record, Index]]:
        """The barriers that lanes of the frame address, with those lanes; an address without a live barrier is a fault."""
        found = self.locator.locate(
            frame, address.value(frame), address.poison(frame), "shared", BYTES, instruction, write=False
        )
        for index in np.unique(found.index):
            lanes = found.lanes[found.index == index]
            record = self.live.get(int(index))
            if record is None:
                text = "an operation on memory that holds no mbarrier"
                self.faults.add("mbarrier", text, instruction, int(lanes[0]), index=int(index), count=len(lanes))
                continue
            racing = self.ordering.shadow.read(np.full(len(lanes), index), BYTES, lanes, True)
            if racing is not None:
                touched = Access(None, np.full(len(lanes), index), None, BYTES, lanes)
                self.accesses.report_race(touched, racing, instruction, "uses an mbarrier that another thread makes")
            yield record, lanes

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
            record.unobserved_copies += record.completed_copies
            record.completed_copies = []
            if len(record.blocked_lanes):
                self.wave.wake(record.blocked_lanes, advance=False)
                record.blocked_lanes = np.zeros(0, np.int64)
        return result

    def arrive(self, record: Record, lanes: Index, counts: list[int], instruction: Instruction) -> list[int]:
        """Each lane arrives `counts` times; returns the phases of the arrivals."""
        token = self.ordering.clocks.release(lanes)
        phases: list[int] = []
        for lane, count in zip(lanes, counts, strict=True):
            record.arrival_token = token if record.arrival_token is None else np.maximum(record.arrival_token, token)
            phase = self.attempt(record, int(lane), instruction, lambda count=count: record.state.arrive(count))
            phases.append(record.state.phase if phase is None else phase)
        return phases

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

    def acquire_phase(self, record: Record, lanes: Index) -> None:
        """These lanes observed the completion of the last phase: they acquire what was released and see the copied bytes. The
        bytes of new copies are stamped as written by one of these lanes, and acquiring the barrier orders a lane after
        everything that this lane did so far. Each seed selects another lane. Its knowledge of other lanes is not included."""
        clocks = self.ordering.clocks
        if record.unobserved_copies:
            observer = int(lanes[-1 - self.seed % len(lanes)])
            for settle in record.unobserved_copies:
                settle(observer)
            record.unobserved_copies = []
            token = np.zeros(self.wave.lane_count, np.int64)
            token[observer] = clocks.now
            clocks.now += 1
            record.released = token if record.released is None else np.maximum(record.released, token)
        if record.released is not None:
            clocks.acquire(lanes, record.released)
