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
GIVES_UP = 0.2
"""Probability, under a seed, that `try_wait` returns before the phase completes; its time limit is implementation-defined."""


@dataclass(slots=True)
class Record:
    """A live barrier at `index` in memory: its state, the tokens released by arrivals (`gathering` in the current phase,
    `released` in the last complete one), blocked lanes, bulk copies in flight (`flying`), completed in the current phase
    (`landed`), and completed in an earlier one that no thread has observed yet (`settled`)."""

    index: int
    state: TransactionBarrier
    gathering: Token | None = None
    released: Token | None = None
    sleepers: Index = field(default_factory=lambda: np.zeros(0, np.int64))
    flying: list[Callable[[], int]] = field(default_factory=list[Callable[[], int]])
    landed: list[Callable[[int], None]] = field(default_factory=list[Callable[[int], None]])
    settled: list[Callable[[int], None]] = field(default_factory=list[Callable[[int], None]])


class Mbarriers:
    """The live barriers of a wave by index in memory."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.live: dict[int, Record] = {}
        machine.on_wave.append(self.live.clear)
        machine.wakers.append(self.land_all)

    def find(self, frame: Frame, address: Source, d: Decoder) -> Iterator[tuple[Record, Index]]:
        """The barriers that lanes of the frame address, with those lanes; an address without a live barrier is a fault."""
        machine = self.machine
        found = access.locate(frame, address.value(frame), address.poison(frame), "shared", BYTES, d.instruction, write=False)
        for place in np.unique(found.index):
            lanes = found.lanes[found.index == place]
            record = self.live.get(int(place))
            if record is None:
                text = "an operation on memory that holds no mbarrier"
                machine.faults.add("mbarrier", text, d.instruction, int(lanes[0]), index=int(place), count=len(lanes))
                continue
            racing = machine.shadow.read(np.full(len(lanes), place), BYTES, lanes, True)
            if racing is not None:
                touched = access.Access(None, np.full(len(lanes), place), None, BYTES, lanes)
                access.report_race(machine, touched, racing, d.instruction, "uses an mbarrier that another thread makes")
            yield record, lanes

    def attempt(self, record: Record, lane: int, d: Decoder, action: Callable[[], Any]) -> Any:
        """Runs an operation on the state; misuse is a fault. Wakes the blocked lanes if the phase completes."""
        before = record.state.phase
        result: Any = None
        try:
            result = action()
        except BarrierMisuse as misuse:
            self.machine.faults.add("mbarrier", f"an mbarrier {misuse}", d.instruction, lane, index=record.index)
        if record.state.phase != before:
            record.released, record.gathering = record.gathering, None
            record.settled += record.landed
            record.landed = []
            if len(record.sleepers):
                self.machine.wake(record.sleepers, advance=False)
                record.sleepers = np.zeros(0, np.int64)
        return result

    def arrive(self, record: Record, lanes: Index, counts: list[int], d: Decoder) -> list[int]:
        """Each lane arrives `counts` times; returns the phases of the arrivals."""
        token = self.machine.clocks.release(lanes)
        phases: list[int] = []
        for lane, count in zip(lanes, counts, strict=True):
            record.gathering = token if record.gathering is None else np.maximum(record.gathering, token)
            phase = self.attempt(record, int(lane), d, lambda count=count: record.state.arrive(count))
            phases.append(record.state.phase if phase is None else phase)
        return phases

    def land(self, record: Record, d: Decoder | None = None, *, all_of_them: bool = False) -> bool:
        """Completes copies in flight that count on the barrier: all of them, or under a seed a random subset. Returns whether
        there was one."""
        random = self.machine.random
        now = [copy for copy in record.flying if all_of_them or self.machine.seed == 0 or random.random() < 0.5]
        record.flying = [copy for copy in record.flying if copy not in now]
        for copy in now:
            copy()
        return bool(now)

    def land_all(self) -> bool:
        """Completes all copies in flight because no thread can run. Returns whether that woke a lane."""
        moved = False
        for record in list(self.live.values()):
            before = len(record.sleepers)
            moved |= self.land(record, all_of_them=True) and len(record.sleepers) < before
        return moved

    def pass_on(self, record: Record, lanes: Index) -> None:
        """These lanes observed the completion of the last phase: they acquire what was released and see the copied bytes. The
        bytes of new copies are stamped as written by one of these lanes, and acquiring the barrier orders a lane after
        everything that this lane did so far. Each seed selects another lane. What it knows of other lanes is not passed on."""
        clocks = self.machine.clocks
        if record.settled:
            observer = int(lanes[-1 - self.machine.seed % len(lanes)])
            for settle in record.settled:
                settle(observer)
            record.settled = []
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
        found = access.locate(frame, address.value(frame), address.poison(frame), "shared", BYTES, d.instruction, write=True)
        if count is None:
            for place in np.unique(found.index):
                if barriers.live.pop(int(place), None) is None:
                    lane = int(found.lanes[0])
                    text = "inval of memory that holds no mbarrier"
                    machine.faults.add("mbarrier", text, d.instruction, lane, index=int(place))
                machine.pending.mark_barrier(int(place), False)
        access.watch_write(machine, found, d.instruction)
        machine.memory.write_rows(
            found.index, np.zeros((len(found.index), BYTES), np.uint8),
            np.full(len(found.index), UNINITIALISED if count is None else 0, np.uint8),
        )  # fmt: skip
        if count is not None:
            poison = count.poison(frame)
            if poison is not None:
                machine.faults.poison("the count of an mbarrier", d.instruction, frame, poison)
            values = np.broadcast_to(count.value(frame), (frame.n,))
            places = np.arange(frame.n) if found.positions is None else found.positions
            for place, lane, value in zip(found.index, found.lanes, values[places], strict=True):
                try:
                    barriers.live[int(place)] = Record(int(place), TransactionBarrier(int(value)))
                except BarrierMisuse as misuse:
                    machine.faults.add("mbarrier", f"an mbarrier {misuse}", d.instruction, int(lane), index=int(place))
                machine.pending.mark_barrier(int(place), True)

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
            places = np.searchsorted(frame.lanes, lanes)
            chosen = [int(x) for x in amounts[places]]
            for lane, value in zip(lanes, chosen, strict=True):
                if expects:
                    barriers.attempt(record, int(lane), d, lambda value=value, record=record: record.state.expect(value))
                elif operation == "complete_tx":
                    barriers.attempt(record, int(lane), d, lambda value=value, record=record: record.state.complete(value))
            if operation.startswith("arrive"):
                if operation == "arrive_drop":
                    record.state.expected -= sum([1] * len(chosen) if expects else chosen)
                phases[places] = barriers.arrive(record, lanes, [1] * len(chosen) if expects else chosen, d)
        if target is not None:
            target(frame, phases, None)

    return step


def _wait(d: Decoder, barriers: Mbarriers, operation: str) -> Step:
    by_parity = d.flag("parity")
    _space(d)
    d.finish(3, 4)
    target, address = d.target(0, "pred"), d.address_source(d.address(1))
    wanted = d.source(2, "u32" if by_parity else "u64")
    machine = barriers.machine

    def step(frame: Frame) -> Any:
        phases, poison = read(wanted, frame)
        if poison is not None:
            machine.faults.poison("the phase that is waited for", d.instruction, frame, poison)
        passed = np.ones(frame.n, np.bool_)
        asleep: list[tuple[Record, Index]] = []
        for record, lanes in barriers.find(frame, address, d):
            places = np.searchsorted(frame.lanes, lanes)
            wanted_here = phases[places]
            done = _passed(barriers, record, wanted_here, by_parity, lanes, d)
            if not done.all() and barriers.land(record):  # as late as possible: without a wait, no thread sees the bytes
                done = _passed(barriers, record, wanted_here, by_parity, lanes, d)
            passed[places] = done
            if done.any():
                barriers.pass_on(record, lanes[done])
            if not done.all():
                asleep.append((record, lanes[~done]))
        if not asleep:
            target(frame, passed, None)
            return None
        if operation == "test_wait" or (machine.seed and machine.random.random() < GIVES_UP):
            target(frame, passed, None)
            machine.scheduler.yield_turn()
            return machine.park(frame, d.index + 1)
        target(frame, passed, None)  # a lane that blocks executes this instruction again
        machine.park(frame, np.where(passed, d.index + 1, d.index))
        for record, lanes in asleep:
            record.sleepers = np.concatenate([record.sleepers, lanes])
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
