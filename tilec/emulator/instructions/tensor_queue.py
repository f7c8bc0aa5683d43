"""The asynchronous operations of tcgen05 that threads have issued: mma, cp and shift, until a thread observes their commit.

PTX ISA, "tcgen05.commit" and "Memory consistency model" of tcgen05. Operations of a cluster are performed in the order of
issue: when a commit after them arrives or, under a seed, at random earlier. Until their completion is observed, the shared
memory that they read is in flight. Invariant: a commit tracks all operations that its thread issued before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.instructions.mbarrier_state import Mbarriers, Record
from tilec.emulator.machine.accesses import Accesses
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.launch_state import LaunchState
from tilec.emulator.machine.subsystem import Subsystem
from tilec.emulator.machine.wave import Wave
from tilec.emulator.ordering.in_flight import Operation as Flight
from tilec.emulator.ordering.tensor_order import Operation
from tilec.emulator.ptx.syntax import Instruction

Index = NDArray[np.int64]
EARLY: Final = 0.5
"""Probability, under a seed, that all operations are performed as soon as one is issued."""


@dataclass(slots=True)
class Reads:
    """Reads of shared memory under way: the operation in flight, the granules of the race shadow, and the last writes of these
    granules: the lanes of the wave and the times. Whatever observes that the reads are complete comes after those writes."""

    flight: Flight
    granules: Index
    writers: Index
    times: Index


@dataclass(eq=False, slots=True)
class Issued:
    """An operation, what performs it (None once it was), its reads of shared memory, and the blocks whose memory it touches."""

    operation: Operation
    perform: Callable[[], None] | None
    reads: Reads | None
    blocks: tuple[int, ...]


@dataclass(slots=True)
class _Issuer:
    """Operations of a thread whose completion nobody has observed, and who observed those before: the last time by lane."""

    open: list[Issued] = field(default_factory=list[Issued])
    observers: dict[int, int] = field(default_factory=dict[int, int])


class TensorQueue(Subsystem):
    """The operations of a wave."""

    def __init__(
        self, launch: LaunchState, wave: Wave, random: np.random.Generator, accesses: Accesses, mbarriers: Mbarriers
    ) -> None:
        self.launch, self.wave, self.random, self.accesses, self.mbarriers = launch, wave, random, accesses, mbarriers
        self.issuers: dict[int, _Issuer] = {}
        self._pending: dict[int, list[Issued]] = {}

    def clear(self) -> None:
        self.issuers.clear()
        self._pending.clear()

    def issue(self, issued: Issued) -> None:
        """Adds an operation of its thread."""
        lane = int(issued.operation.lanes[0])
        cluster = int(self.wave.cluster[self.wave.block[lane]])
        self.issuers.setdefault(lane, _Issuer()).open.append(issued)
        self._pending.setdefault(cluster, []).append(issued)
        if self.launch.seed and self.random.random() < EARLY:
            self.perform(cluster)

    def perform(self, cluster: int, last: Issued | None = None) -> None:
        """Performs the operations of a cluster in order, up to `last` (None: all of them)."""
        pending = self._pending.get(cluster, [])
        if last is not None and last.perform is None:
            return
        while pending:
            issued = pending.pop(0)
            action, issued.perform = issued.perform, None
            if action is not None:
                action()
            if issued is last:
                return

    def commit(self, lane: int, records: list[Record], instruction: Instruction) -> None:
        """The mbarriers get one arrival each once all operations that the thread issued so far are complete."""
        issuer = self.issuers.setdefault(lane, _Issuer())
        tracked, observers = list(issuer.open), dict(issuer.observers)
        cluster = int(self.wave.cluster[self.wave.block[lane]])
        for record in records:
            landed = _Committed(self, issuer, tracked, observers, record)

            def arrive(record: Record = record, landed: _Committed = landed) -> int:
                if tracked:
                    self.perform(cluster, tracked[-1])
                record.completed_copies.append(landed)
                self.mbarriers.attempt(record, lane, instruction, lambda: record.state.arrive(1))
                return 1

            record.copies_in_flight.append(arrive)

    def settle(self, issuer: _Issuer, tracked: list[Issued], observer: int) -> None:
        """A thread observes that these operations are complete."""
        ordering = self.accesses.ordering
        now, shadow = ordering.clocks.now, ordering.shadow
        for issued in tracked:
            if issued.operation.done:
                continue
            issued.operation.observe(np.array([observer]), now)
            if issued.reads is not None:
                ordering.in_flight.end(issued.reads.flight)
                shadow.read_async(issued.reads.granules, (observer,))
            issuer.open.remove(issued)
            issuer.observers[observer] = now

    def leave(self, frame: Frame) -> None:
        """A block must not end while an operation that touches its memory may be under way."""
        if not self.issuers:
            return
        for block in self.wave.ending_blocks(frame.lanes):
            for lane, issuer in self.issuers.items():
                for issued in [issued for issued in issuer.open if block in issued.blocks]:
                    text = "a block ends while a tcgen05 operation, whose commit no thread has waited for, may be under way"
                    self.accesses.faults.add("async", text, issued.operation.instruction, lane, distinct=text)
                    self.settle(issuer, [issued], lane)


@dataclass(eq=False, slots=True)
class _Committed:
    """A commit that has arrived at an mbarrier (`mbarrier_state.Landing`)."""

    queue: TensorQueue
    issuer: _Issuer
    tracked: list[Issued]
    observers: dict[int, int]
    record: Record

    def land(self) -> None:
        """A relaxed wait orders nothing before the fence that follows it."""

    def settle(self, observer: int) -> None:
        """The first thread that acquires the phase completes the operations; it and all others that acquire it know what the
        threads that completed earlier ones did until then."""
        self.queue.settle(self.issuer, self.tracked, observer)
        token = np.zeros(self.queue.wave.lane_count, np.int64)
        for lane, time in self.observers.items():
            token[lane] = time
        for issued in self.tracked:
            seen = issued.operation
            np.maximum.at(token, seen.seen_by, seen.seen_at)
            if issued.reads is not None:
                np.maximum.at(token, issued.reads.writers, issued.reads.times)
        record = self.record
        record.released = token if record.released is None else np.maximum(record.released, token)
