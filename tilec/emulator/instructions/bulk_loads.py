"""Bulk loads into shared memory whose completion no thread has observed: the blocks that they use must not exit.

In: loads when they start and when a thread first observes the completion of their mbarrier phase; lanes that exit. Out: a
fault for each open load when the last thread exits of a block that holds its destination, its mbarrier or its source. PTX
ISA, "Asynchronous operations": only its completion mechanism completes such a load, and shared memory lives as long as its
block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tilec.emulator.instructions.bulk_transfers import Transfer, stamp_reads, write
from tilec.emulator.machine.accesses import Accesses
from tilec.emulator.machine.faults import Recorder
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.subsystem import Subsystem
from tilec.emulator.machine.wave import Wave
from tilec.emulator.ptx.syntax import Instruction


class Loads(Subsystem):
    """The open loads of a wave, by number: the issuing lane, the instruction and the blocks whose shared memory it uses."""

    def __init__(self, wave: Wave, faults: Recorder) -> None:
        self.wave, self.faults = wave, faults
        self._open: dict[int, tuple[int, Instruction, frozenset[int]]] = {}
        self._next = 0

    def clear(self) -> None:
        self._open.clear()

    def begin(self, lane: int, instruction: Instruction, blocks: Iterable[int]) -> int:
        """Starts a load by a lane that uses shared memory of these blocks; returns the number for `end`."""
        self._next += 1
        self._open[self._next] = lane, instruction, frozenset(blocks)
        return self._next

    def end(self, number: int) -> None:
        """Ends a load whose completion a thread has observed."""
        self._open.pop(number, None)

    def leave(self, frame: Frame) -> None:
        if not self._open:
            return
        for block in self.wave.ending_blocks(frame.lanes):
            for number, (lane, instruction, blocks) in list(self._open.items()):
                if block in blocks:
                    text = "a block ends while a bulk load into its shared memory may be under way"
                    self.faults.add("async", text, instruction, lane)
                    del self._open[number]


@dataclass(slots=True)
class Landed:
    """A load whose bytes its mbarrier has counted (`mbarrier_state.Landing`). `shared_source`: it reads shared memory;
    `generic`: it writes through the generic proxy; `then` is called with the first lane that acquires it."""

    loads: Loads
    accesses: Accesses
    number: int
    transfer: Transfer
    shared_source: bool = False
    generic: bool = False
    then: Callable[[int], None] | None = None

    def land(self) -> None:
        """A thread has seen the count, without an order of memory."""
        self.loads.end(self.number)

    def settle(self, observer: int) -> None:
        """Lane `observer` has acquired the completion: the bytes are written as if by it."""
        self.loads.end(self.number)
        self.accesses.ordering.in_flight.end(self.transfer.operation)
        if self.shared_source:
            stamp_reads(self.accesses.ordering.shadow, self.transfer.source, observer)
        write(self.accesses, self.transfer, observer, generic=self.generic)
        if self.then is not None:
            self.then(observer)
