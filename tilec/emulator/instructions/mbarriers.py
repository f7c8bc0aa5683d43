"""`mbarrier`: barriers in shared memory that count arrivals and bytes, and the order that their phases establish.

PTX ISA, "Parallel synchronization and communication instructions: mbarrier". An arrival releases, a successful wait acquires.
A thread that waits for an unfinished phase blocks until its completion; under a seed, `try_wait` sometimes returns false
instead. If the phase never completes, the launch deadlocks. Bulk copies that count bytes on a barrier complete when a thread
tests it, or when no thread can run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import UNINITIALISED
from tilec.emulator.instructions.operands import read
from tilec.emulator.machine import access
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.machine import BLOCKED, Machine
from tilec.emulator.machine.registry import RESCHEDULE, Decoder, Source, Step, control
from tilec.emulator.ordering.transaction_barrier import BarrierMisuse, TransactionBarrier

Index = NDArray[np.int64]
Token = NDArray[np.int64]
BYTES = 8
TIMEOUT_PROBABILITY = 0.2
"""Probability, under a seed, that `try_wait` returns before the phase completes; its time limit is implementation-defined."""


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


class Mbarriers:
    """The live barriers of a wave by index in memory."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.live: dict[int, Record] = {}
        machine.on_wave.append(self.live.clear)
        machine.wakers.append(self.complete_all_copies)

    def find(self, frame: Frame, address: Source, d: Decoder) -> Iterator[tuple[Record, Index]]:
        """The barriers that lanes of the frame address, with those lanes; an address without a live barrier is a fault."""
        machine = self.machine
        found = access.locate(frame, address.value(frame), address.poison(frame), "shared", BYTES, d.instruction, write=False)
        for index in np.unique(found.index):
            lanes = found.lanes[found.index == index]
            record = self.live.get(int(index))
            if record is None:
                text = "an operation on memory that holds no mbarrier"
                machine.faults.add("mbarrier", text, d.instruction, int(lanes[0]), index=int(index), count=len(lanes))
                continue
            racing = machine.shadow.read(np.full(len(lanes), index), BYTES, lanes, True)
            if racing is not None:
                touched = access.Access(None, np.full(len(lanes), index), None, BYTES, lanes)
                access.report_race(machine, touched, racing, d.instruction, "uses an mbarrier that another thread makes")
            yield record, lanes

    def attempt(self, record: Record, lane: int, d: Decoder, action: Callable[[], Any]) -> Any:
        """Runs an operation on the state; misuse is a fault. Wakes the blocked lanes if the phase completes."""
        phase_before = record.state.phase
        result: Any = None
        try:
            result = action()
        except BarrierMisuse as misuse:
            self.machine.faults.add("mbarrier", f"an mbarrier {misuse}", d.instruction, lane, index=record.index)
        if record.state.phase != phase_before:
            record.released, record.arrival_token = record.arrival_token, None
            record.unobserved_copies += record.completed_copies
            record.completed_copies = []
            if len(record.blocked_lanes):
                self.machine.wake(record.blocked_lanes, advance=False)
                record.blocked_lanes = np.zeros(0, np.int64)
        return result

    def arrive(self, record: Record, lanes: Index, counts: list[int], d: Decoder) -> list[int]:
        """Each lane arrives `counts` times; returns the phases of the arrivals."""
        token = self.machine.clocks.release(lanes)
        phases: list[int] = []
        for lane, count in zip(lanes, counts, strict=True):
            record.arrival_token = token if record.arrival_token is None else np.maximum(record.arrival_token, token)
            phase = self.attempt(record, int(lane), d, lambda count=count: record.state.arrive(count))
            phases.append(record.state.phase if phase is None else phase)
        return phases

    def complete_copies(self, record: Record, d: Decoder | None = None, *, all_copies: bool = False) -> bool:
        """Completes copies in flight that count on the barrier: all of them, or under a seed a random subset. Returns whether
        there was one."""
        random = self.machine.random
        completing = [copy for copy in record.copies_in_flight if all_copies or self.machine.seed == 0 or random.random() < 0.5]
        record.copies_in_flight = [copy for copy in record.copies_in_flight if copy not in completing]
        for copy in completing:
            copy()
        return bool(completing)

    def complete_all_copies(self) -> bool:
        """Completes all copies in flight because no thread can run. Returns whether that woke a lane."""
        woken = False
        for record in list(self.live.values()):
            blocked_before = len(record.blocked_lanes)
            woken |= self.complete_copies(record, all_copies=True) and len(record.blocked_lanes) < blocked_before
        return woken

    def acquire_phase(self, record: Record, lanes: Index) -> None:
        """These lanes observed the completion of the last phase: they acquire what was released and see the copied bytes. The
        bytes of new copies are stamped as written by one of these lanes, and acquiring the barrier orders a lane after
        everything that this lane did so far. Each seed selects another lane. What it knows of other lanes is not passed on."""
        clocks = self.machine.clocks
        if record.unobserved_copies:
            observer = int(lanes[-1 - self.machine.seed % len(lanes)])
            for settle in record.unobserved_copies:
                settle(observer)
            record.unobserved_copies = []
            token = np.zeros(self.machine.lane_count, np.int64)
            token[observer] = clocks.now
            clocks.now += 1
            record.released = token if record.released is None else np.maximum(record.released, token)
        if record.released is not None:
            clocks.acquire(lanes, record.released)


def mbarriers(machine: Machine) -> Mbarriers:
    """The launch's mbarriers."""
    found = machine.extensions.get("mbarriers")
    if found is None:
        found = machine.extensions["mbarriers"] = Mbarriers(machine)
    return found


@control("mbarrier")
def mbarrier(d: Decoder) -> Step:
    """Decodes `mbarrier.OPERATION...`."""
    barriers = mbarriers(d.machine)
    operation = d.need("init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx", "test_wait", "try_wait")
    if operation in ("init", "inval"):
        return _lifetime(d, barriers, operation)
    if operation in ("test_wait", "try_wait"):
        return _wait(d, barriers, operation)
    return _arrive(d, barriers, operation)


def _space(d: Decoder) -> None:
    """Modifiers without effect in a single block. `.relaxed` does not order memory and is rejected, like any other
    modifier."""
    d.take("release", "acquire")
    d.take("cta", "cluster")
    d.take("shared", "shared::cta", "shared::cluster")
    d.need("b64")


def _lifetime(d: Decoder, barriers: Mbarriers, operation: str) -> Step:
    _space(d)
    d.finish(2 if operation == "init" else 1)
    address = d.address_source(d.address(0))
    count = d.source(1, "u32") if operation == "init" else None
    machine = barriers.machine

    def step(frame: Frame) -> None:
        checked = access.locate(frame, address.value(frame), address.poison(frame), "shared", BYTES, d.instruction, write=True)
        if count is None:
            for index in np.unique(checked.index):
                if barriers.live.pop(int(index), None) is None:
                    lane = int(checked.lanes[0])
                    text = "inval of memory that holds no mbarrier"
                    machine.faults.add("mbarrier", text, d.instruction, lane, index=int(index))
                machine.pending.mark_barrier(int(index), False)
        access.watch_write(machine, checked, d.instruction)
        machine.memory.write_rows(
            checked.index, np.zeros((len(checked.index), BYTES), np.uint8),
            np.full(len(checked.index), UNINITIALISED if count is None else 0, np.uint8),
        )  # fmt: skip
        if count is not None:
            poison = count.poison(frame)
            if poison is not None:
                machine.faults.poison("the count of an mbarrier", d.instruction, frame, poison)
            values = np.broadcast_to(count.value(frame), (frame.n,))
            positions = np.arange(frame.n) if checked.positions is None else checked.positions
            for index, lane, value in zip(checked.index, checked.lanes, values[positions], strict=True):
                try:
                    barriers.live[int(index)] = Record(int(index), TransactionBarrier(int(value)))
                except BarrierMisuse as misuse:
                    machine.faults.add("mbarrier", f"an mbarrier {misuse}", d.instruction, int(lane), index=int(index))
                machine.pending.mark_barrier(int(index), True)

    return step


def _arrive(d: Decoder, barriers: Mbarriers, operation: str) -> Step:
    expects = operation == "expect_tx" or (operation in ("arrive", "arrive_drop") and d.flag("expect_tx"))
    if operation.startswith("arrive"):
        d.take("noComplete")
    _space(d)
    returns = operation.startswith("arrive") and not hasattr(d.operands[0], "base")
    operands = d.operands[1:] if returns else d.operands
    d.finish(len(d.operands))
    address = d.address_source(d.address(int(returns)))
    amount = d.source(operands[1], "u32") if len(operands) > 1 else None
    target = d.target(0, "b64") if returns else None

    def step(frame: Frame) -> None:
        phases = np.zeros(frame.n, np.uint64)
        amounts = np.ones(frame.n, np.int64) if amount is None else np.broadcast_to(amount.value(frame), (frame.n,))
        for record, lanes in barriers.find(frame, address, d):
            positions = np.searchsorted(frame.lanes, lanes)
            chosen = [int(x) for x in amounts[positions]]
            for lane, value in zip(lanes, chosen, strict=True):
                if expects:
                    barriers.attempt(record, int(lane), d, lambda value=value, record=record: record.state.expect(value))
                elif operation == "complete_tx":
                    barriers.attempt(record, int(lane), d, lambda value=value, record=record: record.state.complete(value))
            if operation.startswith("arrive"):
                if operation == "arrive_drop":
                    record.state.expected -= sum([1] * len(chosen) if expects else chosen)
                phases[positions] = barriers.arrive(record, lanes, [1] * len(chosen) if expects else chosen, d)
        if target is not None:
            target(frame, phases, None)

    return step


def _wait(d: Decoder, barriers: Mbarriers, operation: str) -> Step:
    by_parity = d.flag("parity")
    _space(d)
    d.finish(3, 4)
    target, address = d.target(0, "pred"), d.address_source(d.address(1))
    phase = d.source(2, "u32" if by_parity else "u64")
    machine = barriers.machine

    def step(frame: Frame) -> Any:
        phases, poison = read(phase, frame)
        if poison is not None:
            machine.faults.poison("the phase that is waited for", d.instruction, frame, poison)
        passed = np.ones(frame.n, np.bool_)
        blocked: list[tuple[Record, Index]] = []
        for record, lanes in barriers.find(frame, address, d):
            positions = np.searchsorted(frame.lanes, lanes)
            awaited = phases[positions]
            complete = _passed(barriers, record, awaited, by_parity, lanes, d)
            # as late as possible: without a wait, no thread sees the bytes
            if not complete.all() and barriers.complete_copies(record):
                complete = _passed(barriers, record, awaited, by_parity, lanes, d)
            passed[positions] = complete
            if complete.any():
                barriers.acquire_phase(record, lanes[complete])
            if not complete.all():
                blocked.append((record, lanes[~complete]))
        if not blocked:
            target(frame, passed, None)
            return None
        if operation == "test_wait" or (machine.seed and machine.random.random() < TIMEOUT_PROBABILITY):
            target(frame, passed, None)
            machine.scheduler.yield_frame()
            return machine.park(frame, d.index + 1)
        target(frame, passed, None)  # a lane that blocks executes this instruction again
        machine.park(frame, np.where(passed, d.index + 1, d.index))
        for record, lanes in blocked:
            record.blocked_lanes = np.concatenate([record.blocked_lanes, lanes])
            machine.status[lanes] = BLOCKED
        return RESCHEDULE

    return step


def _passed(barriers: Mbarriers, record: Record, phases: Index, by_parity: bool, lanes: Index, d: Decoder) -> Any:
    """Whether the phase that each lane waits for is complete."""
    if by_parity:
        return np.array([record.state.passed_parity(int(phase)) for phase in phases])
    return np.array(
        [
            bool(barriers.attempt(record, int(lane), d, lambda phase=phase: record.state.passed(int(phase))))
            for phase, lane in zip(phases, lanes, strict=True)
        ]
    )
