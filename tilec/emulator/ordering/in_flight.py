"""Bytes that unfinished asynchronous operations read or write, and bytes of live mbarriers.

`begin` returns an `Operation`, which `end` takes after its wait; in between, `check` reports every conflicting access. An
operation that is unknown, or has ended, is an internal error (KeyError). Invariant: `busy` is False if and only if no operation
is under way and no mbarrier is live, so a plain access then costs one test. PTX ISA, "Asynchronous operations" and "Async
proxy".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.machine.faults import Recorder
from tilec.emulator.machine.memory import Memory
from tilec.emulator.ptx.syntax import Instruction

Index = NDArray[np.int64]
SHIFT: Final = 2
NOTHING: Final[Index] = np.zeros(0, np.int64)
_ONE: Final = np.uint16(1)


@dataclass(eq=False, slots=True)
class Operation:
    """The granules that an operation still reads and writes."""

    reads: Index
    writes: Index


def granules(index: Index, width: int) -> Index:
    """Granules [m, k] of accesses of `width` bytes at each `index`."""
    first = index >> SHIFT
    return first[:, None] + np.arange(width >> SHIFT) if width > 1 << SHIFT else first[:, None]


class InFlight:
    """Counts of unfinished readers and writers of every granule of four bytes. No asynchronous access is narrower, except at
    the edge of a tensor, where the rest of the granule is padding."""

    def __init__(self, memory: Memory, faults: Recorder) -> None:
        self.memory, self.faults = memory, faults
        self.busy = False
        self._under_way: set[Operation] = set()
        self._barriers = 0
        self._size = 0
        self._readers: NDArray[np.uint16] = np.zeros(0, np.uint16)
        self._writers: NDArray[np.uint16] = np.zeros(0, np.uint16)
        self._is_barrier: NDArray[np.bool_] = np.zeros(0, np.bool_)

    def _grow(self) -> None:
        added = (len(self.memory.data) >> SHIFT) - self._size
        if added > 0:
            self._readers = np.concatenate([self._readers, np.zeros(added, np.uint16)])
            self._writers = np.concatenate([self._writers, np.zeros(added, np.uint16)])
            self._is_barrier = np.concatenate([self._is_barrier, np.zeros(added, np.bool_)])
            self._size += added

    def clear(self) -> None:
        """Clears the state for a new wave of blocks."""
        self.busy, self._barriers = False, 0
        self._under_way.clear()
        self._readers[:], self._writers[:], self._is_barrier[:] = 0, 0, False

    def begin(self, reads: Index, writes: Index) -> Operation:
        """Starts an operation that reads and writes these granules."""
        self._grow()
        operation = Operation(reads, writes)
        np.add.at(self._readers, reads, _ONE)
        np.add.at(self._writers, writes, _ONE)
        self._under_way.add(operation)
        self.busy = True
        return operation

    def end_reads(self, operation: Operation) -> None:
        """Ends the reads of an operation, which goes on writing."""
        if operation not in self._under_way:
            raise KeyError(operation)
        np.subtract.at(self._readers, operation.reads, _ONE)
        operation.reads = NOTHING

    def end(self, operation: Operation) -> None:
        """Ends an operation."""
        self.end_reads(operation)
        np.subtract.at(self._writers, operation.writes, _ONE)
        self._under_way.remove(operation)
        self.busy = bool(self._under_way or self._barriers)

    def split(self, operation: Operation, parts: list[tuple[Index, Index]]) -> list[Operation]:
        """Replaces an operation by several, each of which reads and writes a part of its granules."""
        found = [self.begin(reads, writes) for reads, writes in parts]
        self.end(operation)
        return found

    def mark_barrier(self, index: int, live: bool) -> None:
        """Marks the eight bytes at `index` as an mbarrier, or no longer as one."""
        self._grow()
        if bool(self._is_barrier[index >> SHIFT]) != live:
            self._barriers += 1 if live else -1
        self._is_barrier[index >> SHIFT : (index >> SHIFT) + 2] = live
        self.busy = bool(self._under_way or self._barriers)

    def check(self, index: Index, width: int, lanes: Index, is_write: bool, instruction: Instruction) -> None:
        """Reports accesses of `width` bytes by `lanes`, each at its `index`, that conflict with an operation in flight."""
        if self.busy and len(index):
            self.check_granules(granules(index, width), lanes, is_write, instruction)

    def check_granules(
        self, granule_ids: Index, lanes: Index, is_write: bool, instruction: Instruction, plain: bool = True
    ) -> None:
        """`check` for rows of granules [m, k]. An asynchronous access (not `plain`) may access a live mbarrier."""
        self._grow()
        written = np.asarray(self._writers[granule_ids].any(axis=1))
        self._report(
            "async", "bytes that an unfinished asynchronous operation writes", written, granule_ids, lanes, instruction
        )
        if is_write:
            read = np.asarray(self._readers[granule_ids].any(axis=1)) & ~written
            self._report("async", "a write to bytes that an unfinished operation reads", read, granule_ids, lanes, instruction)
        if plain and self._barriers:
            live = np.asarray(self._is_barrier[granule_ids].any(axis=1))
            self._report("mbarrier", "a plain access to the bytes of a live mbarrier", live, granule_ids, lanes, instruction)

    def _report(
        self, kind: str, message: str, bad: NDArray[np.bool_], granule_ids: Index, lanes: Index, instruction: Instruction
    ) -> None:
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            self.faults.add(
                kind,
                message,
                instruction,
                int(lanes[first]),
                index=int(granule_ids[first, 0]) << SHIFT,
                count=int(bad.sum()),
                distinct=message,
            )
